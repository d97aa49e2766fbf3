"""`start`: the next epoch begins before its `iter`, and only its first batch comes sooner."""

from __future__ import annotations

import logging
import os
import random
import sysconfig
import time
from operator import attrgetter
from threading import Semaphore
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.child import run_child
from support.fake_device import FakeDevice
from support.orders import Striding
from support.patience import PATIENCE, becomes
from support.process_random import random_states, seeded_globally
from support.scripted_tuner import script
from support.workers import join_workers

from threadloader import ThreadLoader, TokenBatches, _torch, get_worker_info
from threadloader.datasets import Mixture, MixtureStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.patience import Spawn

SIZE, ROWS, EPOCHS = 24, 4, 3


class Rows:
    """Samples that draw, tell, collect, and depend on what a loop may set."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.scale, self.seconds = 1, seconds
        self.table, self.loaded = {"add": 0, "samples": 0}, Semaphore(0)
        self.kept: list[Any] = [None] * SIZE

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.seconds)
        self.loaded.release()
        self.table["samples"] += 1
        self.kept[index] = np.array([index * self.scale + self.table["add"], random.random()])
        return self.kept[index]

    def __deepcopy__(self, memo: Any) -> Any:
        raise LookupError("there is no copy")

    def taken(self) -> int:
        """Return how many were loaded since the last call."""
        return sum(iter(lambda: self.loaded.acquire(blocking=False), False))

    def collate(self, samples: Any) -> Any:
        return np.stack(samples)


class Shared(Rows):
    """One that all workers share."""

    def __copy__(self) -> Any:
        raise TypeError("there is no copy")


class Stream(_torch.IterableDataset):  # type: ignore[misc,name-defined]
    """Each worker reads its share."""

    def __init__(self) -> None:
        self.scale = 1

    def __len__(self) -> int:
        return SIZE

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(first, SIZE, step):
            yield np.array([index * self.scale, random.random()])


def drawing(**more: Any) -> dict[str, Any]:
    return {"shuffle": True, "generator": np.random.default_rng(4)} | more


def by_tokens() -> dict[str, Any]:
    lengths = np.arange(1, SIZE + 1)
    return {"batch_sampler": TokenBatches(lengths, 30, seed=2), "batch_size": 1}


def mixed(kind: Any) -> dict[str, Any]:
    return {"dataset": kind({"a": (Rows(), 1), "b": (Rows(), 2)}, seed=1), "seed": 1}


# The arguments of loaders that can begin ahead.
KINDS: dict[str, Any] = {
    "in order": dict,
    "shuffled": lambda: {"shuffle": True},
    "a seed": lambda: {"shuffle": True, "seed": 3},
    "a generator": drawing,
    "resumed": drawing,
    "a list": lambda: {"sampler": list(range(0, SIZE, 2))},
    "tokens": by_tokens,
    "persistent": lambda: {"shuffle": True, "persistent_workers": True},
    "persistent, a generator": lambda: drawing(shuffle=False, persistent_workers=True),
    "replicas": lambda: {"dataset": Stream()},
    "a mixture": lambda: mixed(Mixture),
    "a device": lambda: {"shuffle": True, "device": FakeDevice()},
    "the default": lambda: {"dataset": Rows(1e-3), "seed": 3, "threads": None, "timeout": 0},
}
if _torch.AVAILABLE:
    from torch import set_grad_enabled
    from torch.utils.data import WeightedRandomSampler
    from torch.utils.data.distributed import DistributedSampler

    KINDS["weights"] = lambda: {"sampler": WeightedRandomSampler([0.1 + i for i in range(9)], 17)}
    KINDS["ranks' sampler"] = lambda: {"sampler": DistributedSampler(Rows(), 2, 0)}
# Those of loaders that can't, by what the log says.
LEFT: dict[str, Any] = {
    "your own sampler": lambda: {"sampler": Striding(SIZE)},
    "own dataset, not from copies": lambda: {"threads": 0, "timeout": 0},
    "isolate_rng": lambda: {"isolate_rng": False, "dataset": list(range(SIZE))},
    "ranks": lambda: {"shard": (0, 2), "seed": 1},
    "workers' replicas": lambda: {"dataset": Stream(), "persistent_workers": True},
    "are replaced": lambda: {"persistent_workers": True},
}
# Of these it is asked alone what changes them.
OTHERS: dict[str, Any] = {
    "streams": lambda: mixed(MixtureStream),
    "a method": lambda: {"dataset": (rows := Rows()), "collate_fn": rows.collate},
    "shared": lambda: {"dataset": Shared(), "seed": 3},
}


def make(kind: str, **more: Any) -> ThreadLoader[Any]:
    given = {"dataset": Rows(), "batch_size": ROWS, "threads": 2, "timeout": PATIENCE}
    loader = ThreadLoader(**(given | (KINDS | LEFT | OTHERS)[kind]() | {"output": "numpy"} | more))
    if kind == "resumed":
        load(loader)
    elif kind == "the default":
        script(loader, 2)  # threads, as soon as they can take over
    return loader


def load(loader: ThreadLoader[Any]) -> None:
    with make("a generator" if loader.seed is None else "a seed") as other:
        next(iter(other))
        loader.load_state_dict(other.state_dict())


def reseed(seed: int = 5) -> None:
    seeded_globally(seed)
    random.seed(seed)


def observed(loader: ThreadLoader[Any]) -> list[Any]:
    """Return what the loader and the process are like, as far as anybody can tell."""
    told = loader.statistics()
    return [loader.state_dict(), random_states(), told.epochs, told.epoch.batches]


def epoch_of(loader: ThreadLoader[Any], also: Callable[[int], object] = lambda _: None) -> Any:
    """Return the batches of an epoch, each with the state behind it.

    Args:
        loader: The loader.
        also: Called behind each batch, with their number so far.
    """
    told: list[Any] = []
    for batch in loader:
        also(len(told) + 1)
        told.append((np.asarray(batch).tolist(), loader.state_dict()))
    return told


def nothing(_: Any) -> None:
    """Do nothing."""


def story(kind: str, starts: bool, after: int = 0, change: Any = nothing) -> list[Any]:
    """Return all that can be told of some epochs.

    Args:
        kind: Of the loader.
        starts: Whether each epoch is begun ahead.
        after: Behind so many batches of the epoch before; 0 for just before it; -1 for all.
        change: Called before the second one.
    """
    reseed()
    told = []
    with make(kind) as loader:
        tell = getattr(loader.sampler, "set_epoch", nothing)
        after = len(loader) if after < 0 else after
        for epoch in range(EPOCHS):

            def also(number: int, epoch: int = epoch) -> None:
                if kind == "the default" and epoch:  # it sees at once what the loop sets
                    loader.dataset.scale = number  # type: ignore[attr-defined]
                if number == after:
                    tell(epoch + 1)
                    if starts:
                        loader.start()

            if kind == "are replaced" and epoch:
                loader.dataset.scale = epoch + 1  # type: ignore[attr-defined]
            also(0)
            if epoch == 1:
                change(loader)
            told += [observed(loader), epoch_of(loader, also)]
        return [*told, loader.state_dict()]


def both(spawn: Spawn, kind: str, *args: Any) -> list[Any]:
    """Return what is told without `start` and with it."""
    return [spawn(story, kind, starts, *args).result(PATIENCE) for starts in (False, True)]


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    """Return what returns the last that was logged of `start`."""
    caplog.set_level(logging.INFO)
    return lambda: next((text for text in reversed(caplog.messages) if "start()" in text), "")


@pytest.mark.parametrize("after", [0, 2, -1])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:.* was set between two batches")
def test_all_is_as_without_it(kind: str, after: int, said: Any, spawn: Spawn) -> None:
    plain, ahead = both(spawn, kind, after)
    assert ahead == plain
    waits = "persistent" in kind and after == 2  # its batches would come later
    # A default loader makes its first batches itself; and of the others' epochs a state says how
    # they have ended.
    assert bool(said()) == waits or kind in ("the default", "tokens")


@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}, {"device": FakeDevice()}])
def test_first_batches_are_made_ahead(options: dict[str, Any]) -> None:
    with make("in order", dataset=(rows := Rows()), **options) as loader:
        epoch_of(loader)
        assert rows.taken() == SIZE
        loader.start()
        loader.start()  # has no effect
        assert all(rows.loaded.acquire(timeout=PATIENCE) for _ in range(2 * ROWS))
        assert "device" not in options or becomes(lambda: options["device"].copies > SIZE // ROWS)
        told = loader.statistics()
        assert (told.epoch.samples, told.totals.samples >= SIZE + ROWS) == (SIZE, True)
        assert len(epoch_of(loader)) == SIZE // ROWS
        assert rows.taken() == SIZE - 2 * ROWS  # none was loaded twice
        told = loader.statistics()
        assert (told.epochs, told.epoch.samples, told.totals.samples) == (2, SIZE, 2 * SIZE)


def setting(name: str, value: Any) -> Any:
    """Return what sets an attribute of the loader, or of its dataset."""
    *of, last = name.split(".")
    return lambda loader: setattr(attrgetter(*of)(loader) if of else loader, last, value)


STATE = "torch's random state" if _torch.AVAILABLE else "numpy.random"
ENDS, STAYS = "it ends at once", "it counts from the next epoch begun"
# The kind of loader, what is changed between `start` and `iter`, and what the log names.
CHANGES: dict[str, tuple[str, Any, str]] = {
    **{reason: (reason, nothing, reason) for reason in LEFT},
    "what others draw": ("shuffled", lambda _: epoch_of(make("shuffled")), STATE),
    "a generator": ("a generator", lambda it: it.generator.random(), "the generator"),
    "a state": ("persistent, a generator", lambda it: it.generator.random(), "the generator"),
    "set_epoch": ("tokens", lambda it: it.batch_sampler.set_epoch(5), "TokenBatches._epoch"),
    "a dataset's": ("a mixture", lambda it: it.dataset.set_epoch(5), "Mixture.plan"),
    "a stream's": ("streams", lambda it: it.dataset.set_epoch(5), "MixtureStream.epoch"),
    "indices": ("a list", lambda it: it.sampler.reverse(), "list.0"),
    "a sampler": ("shuffled", setting("batch_sampler.drop_last", True), "BatchSampler.drop_last"),
    "an attribute": ("a seed", setting("dataset.scale", 3), "Rows.scale"),
    "a shared one's": ("shared", setting("dataset.scale", 3), "Shared.scale"),
    "a replica's": ("replicas", setting("dataset.scale", 3), "Stream.scale"),
    "a number": ("a seed", setting("num_workers", 1), "num_workers of the loader"),
    "a loaded state": ("a seed", load, ENDS),
    "an end of all": ("persistent", lambda it: it.close(), ENDS),
    "workers dismissed": ("persistent", setting("_iterator", None), "what is kept of the workers"),
    "in place": ("a seed", lambda it: it.dataset.table.update(add=7), STAYS),
    "a method": ("a method", lambda it: setattr(it, "collate_fn", it.dataset.collate), STAYS),
    "a length that is asked for": ("tokens", len, STAYS),
}
if _torch.AVAILABLE:
    CHANGES |= {
        "a mode": ("a seed", lambda _: set_grad_enabled(False), "a mode of torch"),
        "ranks'": ("ranks' sampler", lambda it: it.sampler.set_epoch(5), "Sampler.epoch"),
        "weights": ("weights", lambda it: it.sampler.weights.sub_(0.1), "what the sampler draws"),
    }


@pytest.mark.parametrize("changed", CHANGES)
def test_what_is_set_counts_and_in_place_later(
    changed: str, said: Any, spawn: Spawn, recwarn: pytest.WarningsRecorder
) -> None:
    kind, change, name = CHANGES[changed]
    plain, ahead = both(spawn, kind, 0, change)
    told = slice(-3 if name == STAYS else 0, None)
    assert ahead[told] == plain[told]
    assert name in said() if name not in (ENDS, STAYS) else not said()
    told_what_to_do = ["give the loader seed=" in str(each.message) for each in recwarn]
    assert sum(told_what_to_do) == (name == STATE)


@pytest.mark.skipif(not _torch.AVAILABLE, reason="a sampler of torch's")
def test_who_tells_a_sampler_late_is_not_warned_and_who_forgets_it_is() -> None:
    with make("ranks' sampler") as loader:
        for epoch in range(2):
            loader.sampler.set_epoch(epoch)
            epoch_of(loader, lambda number: loader.start() if number == len(loader) else None)
        with pytest.warns(UserWarning, match="set_epoch"):
            epoch_of(loader)


def test_an_error_is_raised_at_once_and_leaves_no_trace() -> None:
    reseed()
    with make("shuffled", dataset_copy="deep") as loader:
        before = observed(loader)
        for begin in (loader.start, loader.start, loader.__iter__):
            assert observed(loader) == before
            with pytest.raises(LookupError, match="there is no copy"):
                begin()


def test_an_error_of_iter_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with make("a seed", shard="auto") as loader:
        loader.start()
        reseed(7)  # which stays
        before = observed(loader)
        monkeypatch.setenv("RANK", "2")
        with pytest.raises(ValueError, match="RANK"):
            iter(loader)
        monkeypatch.delenv("RANK")
        assert observed(loader) == before
        join_workers()


WAYS_TO_END: dict[str, Any] = {
    "close": ThreadLoader.close,
    "del": nothing,
    "load": lambda it: it.load_state_dict({}),
    "exchange": lambda it: (setattr(it, "timeout", PATIENCE + 1), epoch_of(it)),
}


@pytest.mark.parametrize("kind", ["in order", "persistent", "replicas", "a device"])
@pytest.mark.parametrize("end", WAYS_TO_END)
def test_what_nobody_asks_for_ends_with_its_threads(kind: str, end: str) -> None:
    loader = make(kind)
    loader.start()
    WAYS_TO_END[end](loader)
    del loader
    join_workers()


SCRIPT = """
import os
from threadloader import ThreadLoader
loader = ThreadLoader(list(range(20)), 5, threads=2, timeout=60, output="numpy")
loader.start()
if {}:
    child = os.fork()
    assert [batch.sum() for batch in loader] == [10, 35, 60, 85]
    assert child == 0 or os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.parametrize("forks", [False, True])
def test_exit_and_fork_end_it(forks: bool) -> None:
    if forks and (not hasattr(os, "fork") or sysconfig.get_config_var("Py_GIL_DISABLED")):
        pytest.skip("a fork without a GIL may find a lock of CPython's taken by a thread")
    options = ("-W", "ignore::DeprecationWarning")  # of a fork where there are threads
    assert run_child(SCRIPT.format(forks), *options) == (0, "", "")
