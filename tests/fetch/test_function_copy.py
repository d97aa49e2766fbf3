"""Each worker has a collate function of its own: what it keeps on itself, no other worker sees."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from threading import Barrier
from typing import Any

import pytest
from support.patience import PATIENCE, Spawn
from support.streams import Rows

from threadloader import ThreadLoader, get_worker_info
from threadloader._torch import IterableDataset
from threadloader._worker.copy_rules import new_copier
from threadloader._worker.own_copy import Copied

THREADS = 4
NUMBERS = [[number] for number in range(THREADS)]


class Meeting:
    """Where all workers meet while they collate; it is one for all, as it has a barrier."""

    barrier = Barrier(THREADS)


class Scratch:
    """A helper that nobody calls; wrong if two threads use it at once."""

    def collate(self, samples: Any) -> Any:
        self.samples = samples
        Meeting.barrier.wait(PATIENCE)
        return self.samples


class Collator(Scratch):
    """The usual class."""

    def __call__(self, samples: Any) -> Any:
        return self.collate(samples)


class Module:
    """As a data module: it gives a method of its own."""

    def __init__(self) -> None:
        self.helper = Scratch()
        self.by_name = {"first": [self.helper]}

    def collate(self, samples: Any) -> Any:
        assert self.by_name["first"][0] is self.helper
        return self.helper.collate(samples)


def call(collator: Any, samples: Any) -> Any:
    return collator(samples)


def load(dataset: Any, collate_fn: Any, spawn: Spawn, **options: Any) -> list[Any]:
    """Load as many batches as there are threads, all of which are collated at once."""
    arguments = {"batch_size": 1, "num_workers": THREADS, "prefetch": THREADS} | options
    with ThreadLoader(dataset, collate_fn=collate_fn, **arguments) as loader:
        return spawn(list, loader).result(2 * PATIENCE)


# Of more kinds the objects are that a function holds: see tests/own/test_places.py.
KINDS: dict[str, Callable[[], Any]] = {
    "object": Collator,
    "method with a helper": lambda: Module().collate,
    "partial": lambda: functools.partial(call, Collator()),
}


class Replica(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[int]:
        yield get_worker_info().id


WHERE: dict[str, tuple[Callable[[Any], dict[str, Any]], int]] = {  # and how many call it
    "auto": (lambda it: {"dataset": range(THREADS), "collate_fn": it}, 4),
    "deep": (lambda it: {"dataset": range(THREADS), "dataset_copy": "deep", "collate_fn": it}, 4),
    "replicas": (lambda it: {"dataset": Replica(), "collate_fn": it}, 4),
    "behind a transform": (lambda it: {"dataset": Rows(3), "transform": int, "collate_fn": it}, 3),
    "a transform": (lambda it: {"dataset": iter(range(3)), "transform": it, "collate_fn": list}, 3),
    "no threads": (
        lambda it: {
            "dataset": range(THREADS),
            "num_workers": 0,
            "prefetch": None,
            "collate_fn": it,
        },
        1,
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.usefixtures("first_sample_waits")
def test_scratch_state_is_a_worker_s_own_wherever_the_function_is(
    where: str, kind: str, spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, callers = WHERE[where]
    monkeypatch.setattr(Meeting, "barrier", Barrier(callers))  # one of the others reads
    given = arguments(KINDS[kind]())
    got = load(given.pop("dataset"), given.pop("collate_fn"), spawn, **given)
    assert got == NUMBERS[: 3 if callers == 3 else 4]


def test_what_dataset_and_collate_fn_have_in_common_is_one_in_a_worker(spawn: Spawn) -> None:
    class Has:
        def __init__(self, common: Any) -> None:
            self.common = common
            self.seen: list[int] = []

        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> int:
            return id(self.common)

        def __call__(self, samples: Any) -> Any:
            return samples == [id(self.common)]

    common = Collator()
    got = load(Has(common), Has(common), spawn, num_workers=2)
    assert got == [True, True]


# Modules of torch's


def copied(function: Any) -> Any:
    return new_copier(Copied()).copy("collate_fn", function)


class Trainer:
    """What a data module is attached to, and leads back to it."""

    def __init__(self, module: Any) -> None:
        self.inside = {"modules": [module]}


def test_a_module_is_copied_and_a_model_in_it_is_shared() -> None:
    torch = pytest.importorskip("torch")

    class Light(torch.nn.Module):  # type: ignore[misc,name-defined]
        """As Lightning's: what is pickled has no trainer."""

        def __init__(self) -> None:
            super().__init__()
            self.model = torch.nn.Linear(2, 2)
            self.augment = torch.nn.Sequential(torch.nn.Identity())
            self.weight = torch.nn.Parameter(torch.ones(1))
            self.trainer = Trainer(self)

        def __getstate__(self) -> dict[str, Any]:
            return {**vars(self), "trainer": None}

        def collate(self, samples: Any) -> Any:
            return samples

    module = Light()
    twin = copied(module.collate).__self__
    assert twin is not module
    assert twin.model is module.model
    assert twin.weight is module.weight
    assert twin.trainer.inside["modules"][0] is twin
    assert twin.augment[0] is not module.augment[0]
    assert copied(functools.partial(call, module)).args[0] is module
    assert copied(module).model is module.model
    twin.longest = 3
    assert not hasattr(module, "longest")
