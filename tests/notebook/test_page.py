"""What a notebook shows of a loader: HTML without scripts, true, escaped, without side effects."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from support.acting import Acting
from support.patience import PATIENCE

from threadloader import ThreadLoader


class Page(HTMLParser):
    """The text of a page, whose tags are all closed, and which has no script and loads nothing."""

    def __init__(self, loader: ThreadLoader[Any]) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.source = loader._repr_html_()
        assert "url(" not in self.source
        self.feed(self.source)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in {"style", "div", "p", "strong", "span"}
        assert {name for name, _ in attrs} <= {"class", "style"}
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1] != "style":
            self.text += f"{data}\n"


NEEDS_ONE_THREAD: Any = {"batch_size": 10, "threads": 1, "worker_init_fn": lambda _: None}


def loaded(epochs: int = 1, dataset: Any = range(100), **options: Any) -> Page:
    """Return the page after some epochs."""
    with ThreadLoader(dataset, **NEEDS_ONE_THREAD | options) as loader:
        for _ in range(epochs):
            list(loader)
        page = Page(loader)
        assert (str(loader.verdict()) in page.text) == (epochs > 0)
        return page


def test_before_the_first_epoch_it_says_what_would_be_loaded() -> None:
    text = loaded(0, np.arange(100), threads=3).text
    assert "ThreadLoader" in text
    assert "ndarray · 10 batches · 10 samples in each" in text
    assert "nothing was loaded yet" in text
    assert "3 threads" in text


def test_after_an_epoch_it_says_what_was_counted_in_the_last_one() -> None:
    text = loaded().text
    for said in ("fetch\n", "write\n", "you waited\n", "10 batches · 100 samples", "1 thread · "):
        assert said in text
    assert "of 1 epochs" not in text
    text = loaded(3).text
    assert "10 batches · 100 samples" in text
    assert "the last of 3 epochs" in text


def test_each_stage_has_a_bar_and_the_longest_is_whole() -> None:
    page = loaded(**NEEDS_ONE_THREAD, collate_fn=list)
    assert page.source.count('class="fill"') == 4  # fetch, write, collate, and the waiting
    assert "width:100.0%" in page.source


def test_an_epoch_under_way_shows_its_window() -> None:
    meeting = threading.Barrier(2)
    gated = Acting(100, lambda index: index in {10, 20} and meeting.wait(PATIENCE))
    with ThreadLoader(gated, **NEEDS_ONE_THREAD, prefetch=3) as loader:
        iterator = iter(loader)
        next(iterator)
        meeting.wait(PATIENCE)
        text = Page(loader).text
        meeting.wait(PATIENCE)
        list(iterator)
    assert "window: up to 3 batches ahead, 3 now, " in text


def test_names_are_escaped() -> None:
    source = loaded(0, type("<script>alert(1)</script>", (list,), {})([1, 2])).source
    assert "&lt;script&gt;" in source


def test_showing_a_loader_asks_no_iterable_for_its_length() -> None:
    class Sized:
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

        def __len__(self) -> int:
            raise AssertionError

    assert "Sized" in loaded(0, Sized()).text


def test_a_loader_whose_sampler_has_no_length_is_shown() -> None:
    with ThreadLoader(list(range(9)), batch_sampler=iter([[0, 1], [2]])) as loader:
        list(loader)
        assert "2 batches" in Page(loader).text


def test_samples_that_were_left_out_are_counted() -> None:
    def fails(index: int) -> None:
        if index == 3:
            raise ValueError(index)

    with pytest.warns(UserWarning, match="left out"):
        assert "1 sample left out" in loaded(dataset=Acting(10, fails), on_error="skip").text
