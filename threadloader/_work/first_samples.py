"""What the first samples of a loader do to the objects that they are loaded from.

torch's default loads in-process, from the user's own objects: what samples count goes on from epoch
to epoch, and what the loop sets is seen by the next batch.  So where the user chose no number of
threads, the calling thread makes the first samples from these objects, and workers take over, with
copies, only where samples leave the objects as they are.  What the first ones have loaded is
shared; what they have opened each worker opens for itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from threadloader._fetch.kinds import Kind, kind_of
from threadloader._fetch.loaded import changes, memory, settled, snapshot
from threadloader._fetch.object_copy import walked
from threadloader._fetch.parts import attributes
from threadloader.errors import InProcessWarning, warn_user

if TYPE_CHECKING:
    from collections.abc import Iterator

    from threadloader._fetch.loaded import AttributesBefore, Change, Memory


_IN_PROCESS = (
    "so the calling thread loads all samples, from your own objects, as DataLoader(dataset) does"
)
_SCRATCH = (
    "with threads= all workers write into it; one that is made in the call, or on first use, is "
    "each worker's own"
)
_THREADS = "with threads= each worker has copies of them"
SHARED_ADVICE = (
    "open it on first use in __getitem__ or keep it in a threadloader.datasets.PerThread; if it is "
    "thread-safe, dataset_copy='shared' or a __copy__ that returns self says so"
)

# Objects that are looked at after each batch, the dataset first.  Unmeasured, a choice.
WATCHED = 50
FAILURES = 2.0  # samples that fail in threads alone; errors of the system may pass, and count less
_PLAIN = (bool, int, float, str, bytes, type(None))


class FirstSamples:
    """What was seen of the first samples; a loader keeps it from epoch to epoch.

    Threads:
        loads_nothing, open_once: any; only ever set, by a worker.
        forget: shared; what it drops is read once by each method.
        all others: planner or consumer, which are one thread.  Those of two epochs at once may take
            the samples of both for one another's: then more of them are made in-process.
    """

    def __init__(self) -> None:
        self.in_process = False  # whether the calling thread makes all batches, for good
        self.fails_in_process = False  # whether samples fail in the calling thread, too
        self.open_once = False  # whether a sample opens what a process must not open twice
        self.loads_nothing = False  # whether a worker's first sample leaves its objects as they are
        self.begun = False  # whether the user's objects were looked at
        self.leaves = False  # whether a sample in the calling thread has left them as they are
        # The user's objects as they were when last seen, and what is left of that for the loop.
        self._before: AttributesBefore | None = None
        self._memory: list[Memory] = []
        self._marks: list[_Marks] = []
        self._set: dict[tuple[int, str], Change] = {}  # by samples in the calling thread
        self._steps: dict[tuple[int, str], Any] = {}  # what the last sample has set: by how much
        self._samples = -1  # when that was asked
        self._watched_memory = False  # whether a sample was looked at for what it writes
        self._failures = 0.0

    def watch(self, dataset: Any) -> None:
        """Look at the user's objects, before samples are made, or the loop goes on."""
        self.begun = True
        seen = snapshot(walked({"dataset": dataset}), originals=True)
        self._before = None if self.leaves else seen
        self._memory = [] if self.leaves else memory(seen)
        self._marks = [
            (each.value, {name: _mark(part) for name, (part, _) in each.attributes.items()})
            for each in seen.objects[:WATCHED]
        ]

    def forget(self) -> None:
        """Keep none of the user's values alive: the epoch has ended."""
        self._before, self._memory, self._marks = None, [], []

    @property
    def opened(self) -> list[Change]:
        """What samples have set in the calling thread for that thread alone.

        That is all but data that no sample has written since.
        """
        now = [
            change
            for change in list(self._set.values())
            if getattr(change.owner, change.name, None) is change.value
        ]
        shared = set(map(id, settled([change for change in now if change.is_data])))
        return [change for change in now if id(change) not in shared]

    def may_leave(self, dataset: Any, samples: int) -> bool:
        """Whether workers may take over; if not, make one more sample and ask again.

        Args:
            dataset: The user's.
            samples: That the calling thread has made in this epoch.

        They may once a sample has set nothing anew: the first one or two may have opened a handle.
        But attributes of a dataset that are set again and again are a state that samples advance;
        so is a number in a transform that grows by equal steps.  (All else that transforms set is
        what they have drawn for the sample.)
        """
        if self.in_process or (samples == self._samples and not self.leaves):
            return False
        self._samples = samples
        before, marks, last = self._before, self._marks, self._steps
        watched, again = self._memory, self._watched_memory
        scratch = [] if self.leaves else [part for part in watched if part.is_written]
        self._watched_memory = bool(watched)
        self.watch(dataset)
        if self.leaves or before is None:
            return self.leaves
        for part in scratch:
            if (id(part.owner), part.name) not in self._set:  # those each thread makes for itself
                self._stay(f"samples write into {part.name!r}", _SCRATCH)
                return False
        new = False
        for change in changes(before):
            key = id(change.owner), change.name
            new |= key not in self._set
            first = self._set.get(key, change)
            self._set[key] = change._replace(
                before=first.before, before_key=first.before_key, entries=first.entries
            )
        self._steps = steps = dict(_steps_since(marks))
        for key, step in steps.items():
            if last.get(key, marks) == step:
                self._stay(f"samples set {key[1]!r} again and again")
                return False
        # The first sample may have written what was there: zeros for index 0.
        self.leaves = not new and None not in steps.values() and (again or not watched)
        return self.leaves

    def changed_by_loop(self) -> str | None:
        """Return the name of an attribute that was set since workers took over; None for none.

        What samples set, those of another loader say, is no change; nor is what was None, as it is
        computed on first use, a length say.
        """
        for owner, name, old, _ in _set_since(self._marks):
            if old is not None and (id(owner), name) not in self._set:
                return name
        return None

    def stay_changed(self, name: str) -> None:
        """Let the calling thread make all batches, as the loop sets an attribute."""
        self._stay(f"{name!r} was set between two batches")

    def stay_shared(self, named: str) -> None:
        """Let the calling thread make all batches, as objects can't be copied."""
        self._stay(f"workers would share {named}, which can't be copied", f"else {SHARED_ADVICE}")

    def fails_in_threads(self, error: BaseException) -> bool:
        """Whether samples were seen to fail in worker threads alone, now that one did."""
        self._failures += 0.25 if isinstance(error, OSError) else 1.0
        return self._failures >= FAILURES

    def stay_failed(self, error: BaseException) -> None:
        """Let the calling thread make all batches, as samples fail in worker threads alone."""
        self._stay(f"samples failed in worker threads and not in the calling one ({error!r})")

    def _stay(self, reason: str, advice: str = _THREADS) -> None:
        self.in_process = True
        warn_user(f"{reason}, {_IN_PROCESS}; {advice}", InProcessWarning)


_Marks = tuple[Any, dict[str, Any]]  # an object, and by name what tells its values from others


def _mark(value: Any) -> Any:
    """Return what tells a value from others, and does not keep it alive."""
    return value if type(value) in _PLAIN else (_mark, id(value))


def _set_since(before: list[_Marks]) -> Iterator[tuple[Any, str, Any, Any]]:
    """Yield each attribute that has another value: the object, the name, and both marks."""
    for owner, was in before:
        for name, value, _ in attributes(owner):
            old = was[name] if name in was else _mark(_default(owner, name))
            now = _mark(value)
            if type(old) is not type(now) or old != now:
                yield owner, name, old, now


def _default(owner: Any, name: str) -> Any:
    """Return what a class says of an attribute that an object has not; None for nothing."""
    default = getattr(type(owner), name, None)
    return None if hasattr(default, "__get__") else default


def _steps_since(before: list[_Marks]) -> Iterator[tuple[tuple[int, str], Any]]:
    """Yield what may be a state that samples advance, and by how much it was advanced."""
    for owner, name, old, new in _set_since(before):
        if kind_of(owner) is Kind.DATASET:
            yield (id(owner), name), None
        elif type(old) is int and type(new) is int:
            yield (id(owner), name), new - old
