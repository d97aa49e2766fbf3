"""The headspace: batches come again between the others, which stay what they were."""

from __future__ import annotations

import logging
from collections import UserDict
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
from support.acting import Acting
from support.patience import PATIENCE

from threadloader import ThreadLoader

if TYPE_CHECKING:
    from support.clock import DrivenClock
    from support.patience import Spawn

    from threadloader._report.headspace import Headspace


SIZE = 400  # samples: a round takes a window of 16 batches more than its steps


def _numbers(loader: Any) -> list[int]:
    return [batch.item() for batch in loader]


def _once(numbers: list[int]) -> list[int]:
    return list(dict.fromkeys(numbers))


@pytest.mark.parametrize("threads", [0, 1, 2])
def test_every_batch_comes_in_its_order_and_some_come_again_until_the_result_is_logged(
    threads: int, spawn: Spawn, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "threadloader")
    with ThreadLoader(Acting(SIZE), threads=threads) as loader:
        headspace = loader.headspace(steps=10)
        numbers = spawn(_numbers, loader).result(PATIENCE)
        assert _once(numbers) == list(range(SIZE))
        assert len(numbers) >= SIZE + 10
        assert headspace.finished
        assert str(headspace) in [record.getMessage() for record in caplog.records]
        assert spawn(_numbers, loader).result(PATIENCE) == list(range(SIZE))


def _share(clock: DrivenClock, loading: float, step: float) -> Headspace:
    """Return the headspace of a loop whose samples and steps take so many seconds."""
    with ThreadLoader(Acting(SIZE, lambda _: clock.idle(loading)), threads=0) as loader:
        headspace = loader.headspace(steps=10)
        for _ in loader:
            clock.compute(step)
            if headspace.finished:
                break
    return headspace


def test_the_share_is_what_loading_takes_of_a_step(clock: DrivenClock) -> None:
    headspace = _share(clock, loading=3.0, step=1.0)
    assert headspace.share == pytest.approx(0.75)
    assert str(headspace).startswith("Loading that takes no time would save 75% of a step")
    assert str(headspace).endswith("; the rest is your loop.")
    assert _share(clock, loading=0.0, step=1.0).share == 0.0


@pytest.mark.parametrize(("size", "steps"), [(40, 10), (20, 45)])
def test_a_short_epoch_is_measured_in_several(size: int, steps: int, spawn: Spawn) -> None:
    with ThreadLoader(Acting(size), threads=1, worker_init_fn=lambda _: None) as loader:
        headspace = loader.headspace(steps=steps)
        epochs = 0
        while not headspace.finished:
            assert headspace.share is None
            assert str(headspace).startswith("Not measured yet: ")
            assert _once(spawn(_numbers, loader).result(PATIENCE)) == list(range(size))
            epochs += 1
            assert epochs < 100
    assert epochs > 1
    assert headspace.share is not None


@pytest.mark.parametrize(
    ("size", "taken", "advice"),
    [
        (20, 20, "Ask for fewer steps: loader.headspace(steps=45)."),
        (2, 2, "It needs epochs of more batches."),
        (SIZE, 10, "Ask for fewer steps: loader.headspace(steps=20)."),  # it is left early
    ],
)
def test_epochs_that_are_too_short_are_given_up_with_an_advice(
    size: int, taken: int, advice: str, spawn: Spawn, caplog: pytest.LogCaptureFixture
) -> None:
    with ThreadLoader(Acting(size), threads=1) as loader:
        headspace = loader.headspace(steps=50)
        for _ in range(3):
            assert not headspace.finished
            numbers = spawn(lambda: _numbers(islice(loader, taken))).result(PATIENCE)
            assert numbers == list(range(taken))
        assert spawn(_numbers, loader).result(PATIENCE) == list(range(size))
    assert (headspace.finished, headspace.share) == (True, None)
    assert str(headspace) == (
        f"Not measured: 3 epochs in a row were too short, the longest of {taken} steps, of "
        f"which 21 are needed. {advice}"
    )
    assert str(headspace) in [record.getMessage() for record in caplog.records]


def test_batches_that_come_again_are_not_in_the_state(spawn: Spawn) -> None:
    with ThreadLoader(Acting(SIZE), threads=1) as loader:
        loader.headspace(steps=20)
        iterator = iter(loader)
        taken: list[int] = []
        while len(taken) == len(set(taken)):
            taken.append(spawn(next, iterator).result(PATIENCE).item())
        state = loader.state_dict()
    with ThreadLoader(Acting(SIZE), threads=1) as other:
        other.load_state_dict(state)
        rest = spawn(_numbers, other).result(PATIENCE)
    assert _once(taken) + rest == list(range(SIZE))


@pytest.mark.parametrize("kind", [dict, UserDict])
def test_a_loop_may_take_parts_out_of_its_batches(kind: Any, spawn: Spawn) -> None:
    def loop() -> None:
        for batch in loader:
            labels = batch.pop("labels")
            images = batch["images"].pop(0) if kind is dict else batch["images"][0]
            assert images == labels
            assert batch["images"][-1]["depth"] == labels

    def collated(samples: list[int]) -> Any:
        (index,) = samples
        return kind({"images": [index, {"depth": index}], "labels": index})

    with ThreadLoader(Acting(SIZE), threads=1, collate_fn=collated) as loader:
        headspace = loader.headspace(steps=5)
        spawn(loop).result(PATIENCE)
    assert headspace.finished


def test_the_length_is_that_of_the_epoch_and_other_methods_are_its(spawn: Spawn) -> None:
    with ThreadLoader(Acting(SIZE), threads=1) as loader:
        loader.headspace()
        iterator = iter(loader)
        assert len(iterator) == SIZE
        iterator.close()
        with pytest.raises(RuntimeError, match="closed"):
            spawn(next, iterator).result(PATIENCE)
