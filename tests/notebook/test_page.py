"""What a notebook shows of a loader: HTML without scripts, true, escaped, without side effects."""

from __future__ import annotations

import threading
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.patience import PATIENCE

from threadloader import ThreadLoader

if TYPE_CHECKING:
    from collections.abc import Iterator

VOID = {"br", "hr", "img", "input", "meta", "link"}


class Page(HTMLParser):
    """The text of a page, whose tags are all closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1] != "style":
            self.text += f"{data}\n"


def shown(loader: ThreadLoader[Any]) -> Page:
    page = loader._repr_html_()
    return Page(page)


def test_the_page_has_no_script_and_loads_nothing() -> None:
    with ThreadLoader(np.arange(100), batch_size=10) as loader:
        list(loader)
        page = shown(loader)
        assert page.tags <= {"style", "div", "p", "strong", "span"}
        assert page.attributes <= {"class", "style"}
        assert "url(" not in loader._repr_html_()


def test_before_the_first_epoch_it_says_what_would_be_loaded() -> None:
    with ThreadLoader(np.arange(100), batch_size=10, threads=3) as loader:
        text = shown(loader).text
    assert "ThreadLoader" in text
    assert "ndarray · 10 batches · 10 samples in each" in text
    assert "nothing was loaded yet" in text
    assert "3 threads" in text


def test_after_an_epoch_it_says_what_was_counted() -> None:
    with ThreadLoader(list(range(100)), batch_size=10, threads=1) as loader:
        list(loader)
        text = shown(loader).text
    for name in ("fetch", "write", "you waited"):
        assert f"{name}\n" in text
    assert "10 batches · 100 samples" in text
    assert "1 thread · " in text
    assert "of 1 epochs" not in text


def test_it_is_about_the_last_epoch() -> None:
    with ThreadLoader(list(range(100)), batch_size=10, threads=1) as loader:
        for _ in range(3):
            list(loader)
        assert "10 batches · 100 samples" in shown(loader).text
        assert "the last of 3 epochs" in shown(loader).text


def test_it_gives_the_verdict() -> None:
    with ThreadLoader(list(range(100)), batch_size=10, threads=1) as loader:
        assert shown(loader).text.count(".") == 0
        list(loader)
        assert str(loader.verdict()) in shown(loader).text


def test_each_stage_has_a_bar_and_the_longest_is_whole() -> None:
    with ThreadLoader(list(range(100)), batch_size=10, threads=0, collate_fn=list) as loader:
        list(loader)
        page = loader._repr_html_()
    assert page.count('class="fill"') == 4  # fetch, write, collate, and the waiting
    assert "width:100.0%" in page


def test_an_epoch_under_way_shows_its_window() -> None:
    meeting = threading.Barrier(2)

    class Gated:
        def __len__(self) -> int:
            return 100

        def __getitem__(self, index: int) -> int:
            if index in {10, 20}:
                meeting.wait(PATIENCE)
            return index

    with ThreadLoader(Gated(), batch_size=10, threads=1, prefetch=3) as loader:
        iterator = iter(loader)
        next(iterator)
        meeting.wait(PATIENCE)
        text = shown(loader).text
        meeting.wait(PATIENCE)
        list(iterator)
    assert "window: up to 3 batches ahead, 3 now, " in text


@pytest.mark.parametrize("theme", ["prefers-color-scheme:dark", "data-jp-theme-light"])
def test_colours_follow_the_system_and_jupyterlab(theme: str) -> None:
    with ThreadLoader([1]) as loader:
        assert theme in loader._repr_html_()


def test_names_are_escaped() -> None:
    kind = type("<script>alert(1)</script>", (list,), {})
    with ThreadLoader(kind([1, 2])) as loader:
        page = loader._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_showing_a_loader_asks_no_iterable_for_its_length() -> None:
    class Sized:
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

        def __len__(self) -> int:
            raise AssertionError

    with ThreadLoader(Sized(), batch_size=2, threads=1) as loader:
        assert "Sized" in shown(loader).text


def test_a_loader_whose_sampler_has_no_length_is_shown() -> None:
    with ThreadLoader(list(range(9)), batch_sampler=iter([[0, 1], [2]])) as loader:
        list(loader)
        assert "2 batches" in shown(loader).text


def test_samples_that_were_left_out_are_counted() -> None:
    class Faulty:
        def __len__(self) -> int:
            return 10

        def __getitem__(self, index: int) -> int:
            if index == 3:
                raise ValueError(index)
            return index

    with ThreadLoader(Faulty(), batch_size=5, on_error="skip") as loader:
        with pytest.warns(UserWarning, match="left out"):
            list(loader)
        assert "1 sample left out" in shown(loader).text
