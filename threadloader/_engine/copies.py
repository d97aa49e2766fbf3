"""What each worker has of its own: its copy of the dataset, and of the functions that it calls.

    the user's objects --iter()--> an `Original`, which nobody uses --each worker--> its own

So all workers have the objects as they were at ``iter()``, whatever the loop changes later.  What
the first sample of all has loaded into the objects of its worker, the original gets, and so the
others.  An original, and what workers had of their own, serve the next epochs, too, until the user
sets something.
"""

from __future__ import annotations

from threading import RLock
from types import MethodType
from typing import TYPE_CHECKING, Any, NamedTuple

from threadloader import _torch
from threadloader._worker.copy_rules import is_current, new_copier
from threadloader._worker.learning import Learnt, learn
from threadloader._worker.own_copy import LIMITS, Copied
from threadloader._worker.own_generators import OwnGenerators, seeded
from threadloader.errors import warn_user

if TYPE_CHECKING:
    from collections.abc import Callable

    from threadloader._engine.settings import DatasetCopy, Settings
    from threadloader._report.stats import Counters
    from threadloader._worker.fetcher import Fetches
    from threadloader._worker.own_copy import SharedPart


class Own(NamedTuple):
    """A dataset, and the functions that go with it: those of one worker, or what workers copy."""

    dataset: Any
    collate_fn: Any  # None for none, for torch's, or for the user's own
    init_fn: Any
    transform: Any
    how: DatasetCopy
    copied: Copied  # from what these are copies of
    # Of a worker: those of its dataset, or transform; None where they do not follow the samples.
    generators: OwnGenerators | None = None

    def seeded(self) -> Own:
        """Return the same for a worker: whose random generators follow the samples."""
        makes = self.dataset if self.transform is None else self.transform
        return self._replace(
            generators=OwnGenerators(makes, self.copied),
            collate_fn=seeded(self.collate_fn, self.copied),
        )


def own_of(
    given: Own,
    *,
    notes_states: bool = False,
    shared: Copied | None = None,
    replica: bool = False,
) -> Own:
    """Return copies.

    Args:
        given: What is copied.
        notes_states: See `Copied`.
        shared: What was copied before, of which all that was found to be shared is.
        replica: Whether the dataset is iterable.
    """
    copied = Copied(notes_states=notes_states)
    if given.how == "shared":
        return given._replace(collate_fn=None, copied=copied)
    if shared is not None:
        copied.update(shared.shared_pairs())
    copier = new_copier(copied, limits=LIMITS["replica" if replica else given.how])
    named = {
        "dataset": given.dataset,
        "worker_init_fn": given.init_fn,
        "collate_fn": given.collate_fn,
        "transform": given.transform,
    }
    twins = {name: copier.copy(name, value) for name, value in named.items()}
    copied.may_get_generators = given.init_fn is not None
    return Own(
        twins["dataset"],
        None if twins["collate_fn"] is given.collate_fn else twins["collate_fn"],
        twins["worker_init_fn"],
        twins["transform"],
        given.how,
        copied,
    )


def users_own(settings: Settings) -> Own:
    """Return the user's objects."""
    collate_fn = settings.collate_fn
    if collate_fn is _torch.default_collate:
        collate_fn = None
    return Own(
        settings.dataset,
        collate_fn,
        settings.worker_init_fn,
        settings.transform,
        settings.dataset_copy,
        Copied(),
    )


class Original:
    """What the workers of a map-style dataset copy, and what they give back for the next epoch.

    Args:
        settings: Of the loader.

    Attributes:
        shared: What all workers share, because no rule knows how to copy it.
        meets: Whether there is an object at which samples may wait for one another.
        has_learnt: Whether the first sample of all has ended, so that others may begin.
        opens_once: Whether it has opened what a process must not open twice.

    Invariants, whenever ``_copying`` is not held:
        1. What is free was copied from this original, and no worker has it.

    Threads:
        is_current: planner.
        take, give_back, learn: shared.
        has_learnt, opens_once: only ever set; read and written whole, on both builds.
    """

    def __init__(self, settings: Settings) -> None:
        # Held while something is copied, which opens files and calls what objects of C classes say
        # of themselves: who reads an object, a connection of a database say, does so alone.
        # Re-entrant, as the collector may drop another epoch in the middle of it.
        self._copying = RLock()
        # All below: guarded by _copying.
        self._given = users_own(settings)
        self._isolates = settings.isolate_rng
        self._original = own_of(self._given, notes_states=True)
        self._free: list[Own] = []
        copied = self._original.copied
        self.shared, self.meets = copied.shared, copied.meets
        self.has_learnt = settings.dataset_copy == "shared"
        self.opens_once = False
        self._learnt = Learnt()

    def is_current(self, settings: Settings) -> bool:
        """Whether it is what workers would copy now: the user has set nothing since."""
        now, given = users_own(settings), self._given
        same = all(
            a is b or (type(a) is MethodType and a == b)
            for a, b in zip(now[:5], given[:5], strict=True)
        )
        copied = self._original.copied
        follows = settings.isolate_rng is self._isolates and (
            self._isolates or not copied.generators
        )
        return same and follows and is_current(copied)

    def take(self) -> Own:
        """Return what a worker is to have of its own."""
        with self._copying:
            if self._free:
                return self._free.pop()
            own = own_of(self._original, shared=self._original.copied)
            return own.seeded() if self._isolates else own

    def give_back(self, own: Own) -> None:
        """Take what a worker had, which has ended, for one of the next epoch."""
        with self._copying:
            # Else each worker calls it for objects that are new; or has opened what may belong to
            # its thread, a connection of a database say.
            if own.init_fn is None and not self._learnt.opens_handles:
                self._free.append(own)

    def learn(self, own: Own) -> Learnt:
        """Give the others what the first sample of all has loaded into a worker's objects."""
        with self._copying:
            if self.has_learnt:
                return Learnt()
            learnt = learn(own.copied, LIMITS[own.how])
            self.opens_once |= learnt.opens_once
            self._learnt = learnt  # which keeps what was taken over
            self.has_learnt = True
            return learnt


def warn_of_shared(shared: list[SharedPart], *, default: bool) -> None:
    """Name the objects that workers share.

    Args:
        shared: They.
        default: Whether the user chose no number of threads.
    """
    if not shared:
        return
    them = [f"{path} ({kind.__module__}.{kind.__qualname__})" for path, kind in shared[:5]]
    them += [f"{len(shared) - 5} more"] * (len(shared) > 5)
    text = " and ".join((", ".join(them[:-1]), them[-1])) if them[1:] else them[0]
    what = "one thread loads, as workers would share" if default else "all workers share"
    warn_user(
        f"{what} {text}, which can't be copied: open it on first use in __getitem__; or keep it in "
        "a threadloader.datasets.PerThread; or call threadloader.register() with a function that "
        "opens it for a worker, or with None if threads may share it"
    )


def replicas_of(settings: Settings, workers: int) -> list[Own]:
    """Return each worker's replica of an iterable dataset, with the functions that go with it.

    With a transform worker 0 reads, and the others apply it.  They are told of the reader's
    replica, which they leave alone.

    Args:
        settings: Of the epoch.
        workers: How many there are.
    """
    given = users_own(settings)
    replicas = [_replica_of(given, settings) for _ in range(workers)]
    if settings.transform is not None:
        replicas[1:] = [each._replace(dataset=replicas[0].dataset) for each in replicas[1:]]
    return replicas


def _replica_of(given: Own, settings: Settings) -> Own:
    """Return one worker's own of everything.

    A dataset of no class of torch's has one reader, and is read on by it: a copy of an iterator
    would be read again.
    """
    if settings.unsharded and given.how == "auto":
        own = own_of(given._replace(dataset=None))._replace(dataset=given.dataset)
    else:
        own = own_of(given, replica=given.how == "auto")
    return own.seeded() if settings.isolate_rng else own


class Worker:
    """The identity of a worker, and what it has of its own.

    Args:
        number: From 0.
        place: "worker 3", for notes on errors.
        counters: Its own; nobody else writes them.
        fetcher: Gives it samples of its own copy of the dataset.
        collate_fn: Its copy; None for the user's own function.
        adopt: Called before a job, in a thread that may be kept; None in the calling thread.
        learns: Called after its first job; None for nothing.

    Threads:
        all: its own thread.
    """

    __slots__ = ("_learns", "adopt", "collate_fn", "counters", "fetcher", "number", "place")

    def __init__(
        self,
        number: int,
        place: str,
        counters: Counters,
        fetcher: Fetches,
        collate_fn: Any = None,
        adopt: Callable[[], None] | None = None,
        learns: Callable[[], None] | None = None,
    ) -> None:
        self.number = number
        self.place = place
        self.counters = counters
        self.fetcher = fetcher
        self.collate_fn = collate_fn
        self.adopt = adopt
        self._learns = learns

    def learn(self) -> None:
        """Let the others have what its first job has loaded."""
        learns, self._learns = self._learns, None
        if learns is not None:
            learns()
