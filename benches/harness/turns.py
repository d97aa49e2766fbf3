"""The default and fixed numbers of threads, which take turns with a bare loop in one process.

The fixed numbers and the loop have short turns, each kind of sample by itself; then the default
loads an epoch, they have turns again, the default loads its second epoch, and so on.  What the
default reaches is compared with the turns directly before and after it, as the machine itself is
faster and slower from one second to the next.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from benches.harness.compiling import compiled

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["CHANGES", "WARM_UP", "take_turns"]

FIXED = (0, 1, 2)
MORE = (32, 128)  # for data that waits
LENGTH = 1 << 20  # samples of the workloads that hold their data, of which epochs follow each other
WARM_UP = 5 / 7  # share of a phase in which the default may still look for its number: 5 s of 7
TURN = 0.1  # of a phase, for a fixed number
BEFORE = 0.2  # share of a turn before it counts
SECOND = 0.5  # of a phase of the first epoch, for one of the second
CHANGES = (0, 1, 0)  # the kinds of a first epoch; a second one ends after two


def take_turns(name: str, spin: int, seconds: float, rounds: int) -> dict[str, Any]:
    """Load one workload with all settings.

    Args:
        name: Of the workload.
        spin: Iterations of the pure-Python workload.
        seconds: Of a phase of the default's first epoch.
        rounds: First and second epochs of the default.

    Returns:
        The names of the kinds; rates by setting and kind, a list for each pass of turns; and the
        default's epochs.  Nothing where modules had to be compiled: then it is asked again.
    """
    import torch

    from threadloader import ThreadLoader

    torch.set_num_threads(1)  # as in torch's own workers
    workload = _Workload(name, spin)
    given: dict[str, Any] = {"collate_fn": workload.collate_fn}
    # One for each kind of samples: what a loader knows of one kind says nothing about the other.
    loaders: dict[str, list[Any]] = {
        str(threads): [
            ThreadLoader(workload.dataset, workload.batch_size, threads=threads, **given)
            for _ in workload.kinds
        ]
        for threads in (*FIXED, *(MORE if workload.waits else ()))
    }
    loaders["loop"] = [_Loop(workload) for _ in workload.kinds]
    # Imports what is imported late, and learns what a sample is.
    _pass(workload, loaders, 0.0)
    if compiled:
        return {}
    passes, epochs = [_pass(workload, loaders, seconds * TURN)], []
    for _ in range(rounds):
        with ThreadLoader(workload.dataset, workload.batch_size, **given) as driven:
            for scale in (1.0, SECOND):
                epochs.append(_epoch(workload, driven, seconds * scale, first=scale == 1.0))
                passes.append(_pass(workload, loaders, seconds * TURN))
    return {"kinds": workload.kinds, "passes": passes, "epochs": epochs}


class _Workload:
    """What is loaded."""

    def __init__(self, name: str, spin: int) -> None:
        from benches.workloads.catalog import WORKLOADS
        from benches.workloads.changing import CHANGING, begin_phase

        self.begin_phase = begin_phase
        self.kinds: Sequence[str] = ("",)
        if name in CHANGING:
            changing = CHANGING[name]
            self.dataset: Any = changing
            self.kinds, self.waits = changing.kinds, changing.waits
            self.batch_size, self.collate_fn = 64, None
        else:
            workload = WORKLOADS[name]
            self.dataset, self.waits = workload.make(LENGTH, spin), workload.slow
            self.batch_size, self.collate_fn = workload.batch_size, workload.collate_fn()

    @property
    def changes(self) -> bool:
        """Whether there are two kinds of samples."""
        return len(self.kinds) > 1


class _Loop:
    """The bare loop of all benches: it stacks what the dataset returns."""

    def __init__(self, workload: _Workload) -> None:
        from benches.loaders.stacking import stack

        self._workload = workload
        self._collate = workload.collate_fn or stack

    def __iter__(self) -> Iterator[Any]:
        dataset, size = self._workload.dataset, self._workload.batch_size
        for start in range(0, len(dataset), size):
            yield self._collate([dataset[index] for index in range(start, start + size)])


class _Batches:
    """The batches of a loader, epoch after epoch where they are short."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._epoch = iter(loader)

    def take(self) -> Any:
        """Return the next one."""
        for batch in self._epoch:
            return batch
        self._epoch = iter(self._loader)
        return next(self._epoch)

    def threads(self) -> int:
        """Return how many threads may run; 0 if the calling thread makes the batches."""
        return int(self._epoch.moment()[0])

    def close(self) -> None:
        """End the epoch, and wait for its threads."""
        self._epoch.close()  # of the loop: it is a generator


def _pass(
    workload: _Workload, loaders: dict[str, list[Any]], seconds: float
) -> dict[str, list[float]]:
    """Let all settings have a turn with each kind of samples.

    Args:
        workload: What is loaded.
        loaders: By setting, one for each kind.
        seconds: Of a turn.

    Returns:
        The rates, in samples a second, by setting and kind.
    """
    rates: dict[str, list[float]] = {setting: [] for setting in loaders}
    for kind in range(len(workload.kinds)):
        for setting, of_kinds in loaders.items():
            rates[setting].append(_turn(workload, of_kinds[kind], kind, seconds))
    return rates


def _turn(workload: _Workload, loader: Any, kind: int, seconds: float) -> float:
    """Return the rate of samples of one kind, from a batch soon after the beginning on."""
    workload.begin_phase(kind)
    began = time.perf_counter()
    batches = _Batches(loader)
    taken, since = 0, 0.0
    while True:
        batches.take()
        now = time.perf_counter()
        if since:
            taken += 1
            if now - since >= seconds * (1.0 - BEFORE):  # threads may deliver many at once
                break
        elif now - began >= seconds * BEFORE:
            since = now
    batches.close()
    return taken * workload.batch_size / (now - since)


def _epoch(workload: _Workload, loader: Any, seconds: float, *, first: bool) -> dict[str, Any]:
    """Load an epoch of some phases with the default.

    Args:
        workload: What is loaded.
        loader: Finds its number of threads.
        seconds: Of a phase.
        first: Whether it is the loader's first epoch.

    Returns:
        Of each phase its kind, its seconds, the samples that were made in it, the rate after the
        warm-up, and the threads at its end.
    """
    kinds = (CHANGES if first else CHANGES[:2]) if workload.changes else (0,)
    epoch = _DrivenEpoch(workload, loader, number_of_phases=len(kinds))
    phases = [
        {"kind": kind} | epoch.load(number, seconds, warm_up=seconds * WARM_UP)
        for number, kind in enumerate(kinds)
    ]
    samples = epoch.end()
    for number, phase in enumerate(phases):
        phase["samples"] = samples[number]
    return {"phases": phases}


class _DrivenEpoch:
    """An epoch of the default's, from its beginning on."""

    def __init__(self, workload: _Workload, loader: Any, number_of_phases: int) -> None:
        self._workload, self._last = workload, number_of_phases - 1
        self._samples: Counter[int] = Counter()  # by phase
        self._newest = 0  # a batch of this phase alone was seen: none of an earlier one follows
        workload.begin_phase(0)
        self._now = time.perf_counter()
        self._batches = _Batches(loader)

    def load(self, phase: int, seconds: float, warm_up: float) -> dict[str, Any]:
        """Load one phase; return its seconds, the rate after the warm-up, and the threads."""
        self._workload.begin_phase(phase)
        began, now = self._now, self._now
        taken, since, taken_before = 0, 0.0, 0
        while now - began < seconds:
            batch = self._batches.take()
            now = time.perf_counter()
            taken += 1
            self._count(batch, phase)
            if not since and now - began >= warm_up:
                since, taken_before = now, taken
        self._now = now
        if taken == taken_before or not since:  # there were few batches
            since, taken_before = began, 0
        rate = (taken - taken_before) * self._workload.batch_size / (now - since)
        return {"seconds": now - began, "settled": rate, "threads": self._batches.threads()}

    def _count(self, batch: Any, phase: int) -> None:
        """Count the samples by the phases that they were made in."""
        if phase == self._newest:
            self._samples[phase] += self._workload.batch_size
            return
        phases = Counter(batch[1].tolist())
        self._samples.update(phases)
        if len(phases) == 1 and phase in phases:
            self._newest = phase

    def end(self) -> Counter[int]:
        """Count what was made and not delivered; return the samples by phase."""
        if self._workload.changes:
            from benches.workloads.changing import LAST

            self._workload.begin_phase(LAST)
            while self._newest != LAST:
                self._count(self._batches.take(), LAST)
        self._batches.close()
        return self._samples
