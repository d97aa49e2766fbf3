"""Batches on a real device, verified there: every element follows from the sample's index.

The device computes what a batch must hold and counts what differs, so the host hardly ever waits
and copies, kernels and reused slots overlap as they do in training.  Each check is one way to
consume; now and then a kernel that only waits, or a foreign copy, makes the device late.
"""

from __future__ import annotations

import random
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import torch

from benches.harness.machine import gil_enabled
from threadloader import ThreadLoader
from threadloader._torch.accelerators import open_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

__all__ = [
    "DEVICE",
    "ENDLESS",
    "ON_DEVICE",
    "Outcome",
    "Samples",
    "run_checks",
    "run_mutants",
]

DEVICE = torch.device("cuda")
ON_DEVICE: dict[str, Any] = {"device": DEVICE, "timeout": 60}  # rather an error than no end
BATCH = 8  # samples
ROW = 256  # elements of a sample: 16 KiB a batch, so that 100,000 take a minute or two
LARGE_ROW = 1 << 15  # elements: a batch of 2 MiB, whose rows are copied by themselves
PERIOD = 4093  # samples with rows of their own; a prime, so that no batch begins like another
FACTOR = 1_000_003
READ = 1000  # batches between two looks at the device's counters
KEPT = 64  # batches
CYCLES = 2_000_000  # of the device: about a millisecond
ENDLESS = 10_000_000  # samples: no epoch of them comes to its end
EPOCH = 37  # batches of an epoch that is broken off
_cuda: Any = torch.cuda  # much of it has no types


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one check."""

    name: str
    batches: int
    seconds: float
    slots: int  # made; far fewer than batches where slots are reused
    problem: str | None  # what differed; None if nothing did


class Numbered:
    """Samples whose elements follow from their index: ``(index % PERIOD + column) * FACTOR``.

    Args:
        length: Samples.
        row: Elements of each.
        uneven: Whether a few take long.
    """

    def __init__(self, length: int, row: int = ROW, *, uneven: bool = False) -> None:
        self._length = length
        self._row = row
        self._uneven = uneven
        self._values = np.arange(PERIOD + row, dtype=np.int64) * FACTOR

    def __len__(self) -> int:
        """Return the number of samples."""
        return self._length

    def __getitem__(self, index: int) -> tuple[NDArray[np.int64], int]:
        """Return a view of the row, and its index."""
        if self._uneven and index % 997 == 0:
            time.sleep(0.002)
        start = index % PERIOD
        return self._values[start : start + self._row], index


class Samples:
    """Samples to be copied: views of two blocks, which stay in cache; or decompressed from one.

    Args:
        rows: Of a batch of them.
        nbytes: Of a sample.
        packed: Whether they have to be decompressed.
    """

    def __init__(self, rows: int, nbytes: int, *, packed: bool = False) -> None:
        self.rows = rows
        self.nbytes = nbytes
        self._blocks = np.random.default_rng(0).integers(0, 16, (2, nbytes), np.uint8)
        self._packed = zlib.compress(self._blocks[0].tobytes()) if packed else None

    def __len__(self) -> int:
        """Return the number of samples."""
        return ENDLESS

    def __getitem__(self, index: int) -> NDArray[np.uint8]:
        """Return the sample."""
        if self._packed is None:
            block: NDArray[np.uint8] = self._blocks[index % 2]
            return block
        # Copied once more, because torch warns of an array that can't be written to.
        return np.frombuffer(bytearray(zlib.decompress(self._packed)), np.uint8)


class Verifier:
    """Counts on the device what is wrong; for one stream.

    Args:
        samples: Of one epoch.
        row: Elements of a sample.
    """

    def __init__(self, samples: int, row: int = ROW) -> None:
        self._columns = torch.arange(row, device=DEVICE)
        self._lines = torch.arange(BATCH, device=DEVICE)
        self._ones = torch.ones(BATCH, dtype=torch.int64, device=DEVICE)
        self.seen = torch.zeros(samples, dtype=torch.int64, device=DEVICE)  # times, each sample
        self.wrong = torch.zeros((), dtype=torch.int64, device=DEVICE)  # elements
        # Of the first batch that is wrong: which it is, and what it holds.
        self.number = torch.zeros((), dtype=torch.int64, device=DEVICE)
        self.labels = torch.zeros(BATCH, dtype=torch.int64, device=DEVICE)
        self.rows = torch.zeros(BATCH, row, dtype=torch.int64, device=DEVICE)
        _cuda.synchronize()  # it may be used in any stream now

    def check(self, batch: Any, number: int, *, ordered: bool = True, again: bool = False) -> None:
        """Verify a batch in the current stream; the host does not wait.

        Args:
            batch: ``[rows, labels]`` on the device.
            number: Of the batch in its epoch.
            ordered: Whether its labels must be those of that number.
            again: Whether it was verified before, and is not counted.
        """
        rows, labels = batch
        expected = (labels.remainder(PERIOD)[:, None] + self._columns) * FACTOR
        wrong = (rows != expected).sum()
        if ordered:
            wrong += (labels != self._lines + number * BATCH).sum()
        first = (wrong > 0) & (self.wrong == 0)
        self.number.add_(first, alpha=number)  # a scalar in where() would be copied there first
        self.labels = torch.where(first, labels, self.labels)
        self.rows = torch.where(first, rows, self.rows)
        self.wrong += wrong
        if not again:
            # Clamped: an index out of bounds would end the process' use of the device.
            self.seen.index_add_(0, labels.clamp(0, len(self.seen) - 1), self._ones)

    def look(self, number: int) -> bool:
        """Whether something is wrong by now; asks the device only now and then."""
        return number % READ == READ - 1 and bool(self.wrong.item())


def report(verifiers: list[Verifier], *, complete: bool = True) -> str | None:
    """Return what differed in one epoch, None if nothing did.

    Args:
        verifiers: One a stream.
        complete: Whether every sample must have come once.
    """
    _cuda.synchronize()
    for verifier in verifiers:
        if count := int(verifier.wrong.item()):
            labels, rows = verifier.labels.cpu(), verifier.rows.cpu()
            expected = (labels.remainder(PERIOD)[:, None] + torch.arange(rows.shape[1])) * FACTOR
            places = (rows != expected).nonzero().tolist()
            text = f"{count} elements are wrong, first in batch {int(verifier.number.item())}"
            text += f", whose labels are {labels.tolist()}"
            if places:
                row, column = places[0]
                found, wanted = int(rows[row, column]), int(expected[row, column])
                text += f"; {len(places)} of its elements: [{row}, {column}] is {found}"
                text += f" instead of {wanted}"
            return text
    seen: Any = sum(verifier.seen for verifier in verifiers)
    if complete and (odd := (seen != 1).nonzero().flatten().tolist()):
        return f"{len(odd)} samples came not once, first {odd[0]}: {int(seen[odd[0]])} times"
    return None


class _Delay:
    """Makes a stream late, every few batches, by a kernel that does nothing for a millisecond.

    In the current stream call it between `next` and the check: where a batch is taken the copier
    knows that all before has been done, so what comes late behind that is the use of the batch
    itself.

    Args:
        every: Batches from one kernel to the next.
        copies: Whether the copies are late, instead of the current stream.
    """

    def __init__(self, every: int = 8, *, copies: bool = False) -> None:
        self._every = every
        opened: Any = open_device(DEVICE)
        # All loaders of the process copy on one stream.
        self._stream = opened.here()._stream if copies else None  # noqa: SLF001

    def __call__(self, number: int) -> None:
        if number % self._every == 0:
            with _cuda.stream(self._stream):  # None: the current one
                _cuda._sleep(CYCLES)  # noqa: SLF001  # as in torch's own tests


def _loader(dataset: Numbered, **options: Any) -> ThreadLoader[Any]:
    return ThreadLoader(dataset, BATCH, **{"threads": 4, **ON_DEVICE, **options})


Found = tuple[int, str | None]  # slots made, what differed


def _plain(batches: int, *, row: int = ROW, noise: bool = False, **options: Any) -> Found:
    """Take each batch in the current stream and drop it."""
    verifier, delay = Verifier(batches * BATCH, row), _Delay()
    delay_copies = _Delay(7, copies=True)
    own = _cuda.Stream()
    foreign = torch.empty(1 << 26, dtype=torch.uint8, pin_memory=True) if noise else None
    target = torch.empty(1 << 26, dtype=torch.uint8, device=DEVICE) if noise else None
    with _loader(Numbered(batches * BATCH, row), **options) as loader:
        for number, batch in enumerate(loader):
            delay(number)
            verifier.check(batch, number)
            delay_copies(number)
            if target is not None and foreign is not None and number % 4 == 0:
                with _cuda.stream(own):  # copies queue up behind this one
                    target.copy_(foreign, non_blocking=True)
            if verifier.look(number):
                break
        return loader.statistics().slots.made, report([verifier])


def _switching(batches: int) -> Found:
    """Take each batch in another of three streams."""
    streams = [_cuda.current_stream(), _cuda.Stream(), _cuda.Stream()]
    verifiers, delay = [Verifier(batches * BATCH) for _ in streams], _Delay(8)
    with _loader(Numbered(batches * BATCH), device_prefetch=3) as loader:
        epoch = iter(loader)
        for number in range(batches):
            with _cuda.stream(streams[number % 3]):
                batch = next(epoch)
                delay(number)
                verifiers[number % 3].check(batch, number)
                del batch
            if any(verifier.look(number) for verifier in verifiers):
                break
        return loader.statistics().slots.made, report(verifiers)


def _keeping(batches: int) -> Found:
    """Keep batches for a while, and verify them again when they are dropped."""
    verifier, delay, rng = Verifier(batches * BATCH), _Delay(), random.Random(0)
    kept: list[tuple[int, Any]] = []
    with _loader(Numbered(batches * BATCH)) as loader:
        for number, batch in enumerate(loader):
            delay(number)
            verifier.check(batch, number)
            kept.append((number, batch))
            if len(kept) > KEPT:
                old, batch = kept.pop(rng.randrange(KEPT))  # noqa: PLW2901  # it is dropped
                verifier.check(batch, old, again=True)
            if verifier.look(number):
                break
        for number, batch in kept:
            verifier.check(batch, number, again=True)
        return loader.statistics().slots.made, report([verifier])


def _pinned(batches: int) -> Found:
    """Copy page-locked batches oneself, behind other work, and drop them at once."""
    verifier, delay = Verifier(batches * BATCH), _Delay(4)
    with _loader(Numbered(batches * BATCH), device=None, pin_memory=True) as loader:
        for number, batch in enumerate(loader):
            if number == 0 and not all(part.is_pinned() for part in batch):
                return 0, "a batch with pin_memory=True is not page-locked"
            delay(number)  # so that the copies wait, and their source is dropped before them
            there = [part.to(DEVICE, non_blocking=True) for part in batch]
            del batch
            verifier.check(there, number)
            if verifier.look(number):
                break
        return loader.statistics().slots.made, report([verifier])


def _out_of_order(batches: int) -> Found:
    """Take whichever batch is ready, some samples being slow."""
    verifier, delay = Verifier(batches * BATCH), _Delay()
    dataset = Numbered(batches * BATCH, uneven=True)
    with _loader(dataset, in_order=False, device_prefetch=4) as loader:
        for number, batch in enumerate(loader):
            delay(number)
            verifier.check(batch, number, ordered=False)
            if verifier.look(number):
                break
        return loader.statistics().slots.made, report([verifier])


def _side_by_side(batches: int) -> Found:
    """Take from three loaders in turn."""
    each = max(1, batches // 3)
    verifiers, delay = [Verifier(each * BATCH) for _ in range(3)], _Delay()
    loaders = [_loader(Numbered(each * BATCH), device_prefetch=1 + ahead) for ahead in range(3)]
    for number, parts in enumerate(zip(*loaders, strict=True)):
        delay(number)
        for verifier, batch in zip(verifiers, parts, strict=True):
            verifier.check(batch, number)
        if verifiers[0].look(number):
            break
    problems = [report([verifier]) for verifier in verifiers]
    made = sum(loader.statistics().slots.made for loader in loaders)
    for loader in loaders:
        loader.close()
    return made, next(filter(None, problems), None)


def _in_threads(batches: int) -> Found:
    """Take from three loaders in three threads, each with a stream of its own."""

    def consume() -> Found:
        with _cuda.stream(_cuda.Stream()):
            return _plain(max(1, batches // 3))

    with ThreadPoolExecutor(3) as pool:
        found = [future.result() for future in [pool.submit(consume) for _ in range(3)]]
    problems = [problem for _, problem in found if problem]
    return sum(made for made, _ in found), problems[0] if problems else None


def _broken_off(batches: int) -> Found:
    """Break epochs off with copies on their way; the next one reuses their slots."""
    length = 3 * EPOCH
    verifier, delay = Verifier(length * BATCH), _Delay(4)
    with _loader(Numbered(length * BATCH)) as loader:
        for epoch in range(max(1, batches // EPOCH)):
            for number, batch in enumerate(loader):
                delay(number)
                verifier.check(batch, number, again=True)
                if number == epoch % EPOCH:
                    break
            if verifier.look(epoch):
                break
        return loader.statistics().slots.made, report([verifier], complete=False)


# Name, share of the batches, what to do.
CHECKS: tuple[tuple[str, float, Callable[[int], Found]], ...] = (
    ("dropped at once", 0.25, _plain),
    ("taken in three streams in turn", 0.2, _switching),
    ("kept for a while", 0.15, _keeping),
    ("pinned, copied by the user and dropped at once", 0.2, _pinned),
    ("out of order", 0.08, _out_of_order),
    ("three loaders in turn", 0.06, _side_by_side),
    ("three loaders in threads", 0.03, _in_threads),
    ("2 MiB, beside foreign copies", 0.01, partial(_plain, row=LARGE_ROW, noise=True)),
    ("epochs broken off", 0.02, _broken_off),
)


# Rules that are broken on purpose, by a function of torch's that does nothing then.
MUTANTS: tuple[tuple[str, Any, str], ...] = (
    ("the stream does not wait for the copy", _cuda.Stream, "wait_event"),
    ("memory is reused before the stream is done with it", torch.Tensor, "record_stream"),
    ("a slot is filled again before its copy has finished", _cuda.Event, "synchronize"),
)


def run_mutants(batches: int) -> Iterator[tuple[str, list[str]]]:
    """Break each rule, and yield it with the names of the checks that notice; none must not be."""
    for rule, owner, name in MUTANTS:
        with patch.object(owner, name, lambda *_, **__: None):
            yield rule, [outcome.name for outcome in run_checks(batches) if outcome.problem]


def run_checks(batches: int) -> Iterator[Outcome]:
    """Run each check on its share of so many batches; an exception is a problem, too."""
    for name, share, check in CHECKS:
        if check is _in_threads and not gil_enabled():
            # A free-threaded torch may crash where threads make tensors at once (pytorch#171992).
            print(f"  not without the GIL (pytorch#171992): {name}", file=sys.stderr)
            continue
        number = max(EPOCH, round(batches * share))
        started = time.perf_counter()
        try:
            slots, problem = check(number)
        except Exception as error:  # noqa: BLE001  # reported; the other checks go on
            slots, problem = 0, f"{type(error).__name__}: {error}"
        yield Outcome(name, number, time.perf_counter() - started, slots, problem)
