"""The measured process: one loader, one workload, four steps.

`benches.harness.fresh_process` starts it by way of `benches.harness.child`, and the same
steps are taken for every loader:

1. Import the loader, make the dataset, fetch one sample, bring the allocator into the
   state of a process that has run for a while. Not timed.
2. Construct the loader, start an epoch, take the first batch: the time to the
   first batch, threads or processes started within it included.
3. Finish the epoch, checking each batch. This is the warm-up, and not timed:
   caches fill, torch's persistent workers and their queues are up, buffers exist.
4. Iterate whole epochs until the time asked for is over: the rate. Whole epochs
   only, for a batch that is loaded ahead must not count for less than one
   delivered; so the start and the end of an epoch are in the rate, for all alike.
"""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from benches.harness.machine import usable_cores
from benches.harness.record import Answer, Question
from benches.harness.usage import Usage, measure_usage, system_cpu_s
from benches.loaders.catalog import Loader, import_rival
from benches.workloads.catalog import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Callable

    from benches.workloads.catalog import Dataset

__all__ = ["answer", "measure"]


def answer(question: Question) -> Answer:
    """Answer one question in this process, and in the limit's processes."""
    if question.loader != "processes":
        return measure(question)
    from benches.loaders.processes import measure_together

    return _total(question, measure_together(question, measure))


def measure(
    question: Question,
    before_rate: Callable[[], object] = lambda: None,
    after_rate: Callable[[Loader], object] = lambda _: None,
) -> Answer:
    """Take the four steps above.

    Args:
        question: What to measure.
        before_rate: Called between the warm-up and the rate.
        after_rate: Called with the loader as soon as the rate is measured.

    Raises:
        ValueError: The loader delivered other batches than it should.
    """
    workload = WORKLOADS[question.workload]
    rival = import_rival(question.loader)
    dataset = workload.dataset(question.workers, question.spin)
    dataset[0]  # the first photo makes Pillow load its plug-ins
    settle_allocator()
    gc.collect()

    started = time.perf_counter()
    loader = rival(dataset, workload.batch_size, question.workers, question.output)
    epoch = iter(loader)
    first = next(epoch)
    first_batch_ms = (time.perf_counter() - started) * 1000
    _check_values(first, dataset)
    _check_labels(first, 0)
    # No batch is kept beyond its turn: that would cost a loader another buffer.
    del first
    delivered = workload.batch_size
    for batch in epoch:
        _check_labels(batch, delivered)
        delivered += len(batch[1])
    if delivered != len(dataset):
        raise ValueError(f"{delivered} of {len(dataset)} samples were delivered")
    del batch, epoch
    before_rate()

    used, system = measure_usage(), system_cpu_s()
    samples = batches = epochs = 0
    started = time.perf_counter()
    while True:
        for batch in loader:
            samples += len(batch[1])
            batches += 1
        epochs += 1
        elapsed = time.perf_counter() - started
        if elapsed >= question.seconds:
            break
    used = _difference(measure_usage(), used)
    system = _later(system_cpu_s(), system)
    del batch
    after_rate(loader)
    counters = loader.counters()
    loader.close()
    return Answer(
        workload=question.workload,
        loader=question.loader,
        workers=question.workers,
        rate=samples / elapsed,
        first_batch_ms=first_batch_ms,
        cpu_us_per_sample=None if used.cpu_s is None else used.cpu_s / samples * 1e6,
        faults_per_batch=None if used.minor_faults is None else used.minor_faults / batches,
        samples=samples,
        batches=batches,
        epochs=epochs,
        elapsed_s=elapsed,
        other_cores_busy=None
        if system is None or used.cpu_s is None
        else max(0.0, (system - used.cpu_s) / elapsed),
        counters=counters,
    )


def settle_allocator() -> None:
    """Let malloc keep large blocks, as it does in a process that has run for a while.

    glibc starts by giving blocks of 128 KiB and more back to the system at once, until
    it sees one freed; from then on it keeps blocks of that size. In a fresh process a loop
    in the main thread would fault in each photo's pages anew (470 faults a photo against
    less than 1, tried on 3.11 and 3.13t), and threads, whose arenas keep more, would win
    for a reason that no training run knows. So everyone starts with the highest threshold.

    Source: ``DEFAULT_MMAP_THRESHOLD_MAX``, 32 MiB on 64-bit systems, in glibc's malloc.c.
    """
    block = np.empty((32 << 20) - (64 << 10), dtype=np.uint8)
    del block


def _check_values(batch: Any, dataset: Dataset) -> None:
    """Compare the first and the last value of the first batch with the dataset's."""
    values = np.asarray(batch[0])
    for row in (0, len(values) - 1):
        if not np.array_equal(values[row], dataset[row][0]):
            raise ValueError(f"row {row} of the first batch is not sample {row}")


def _check_labels(batch: Any, start: int) -> None:
    """Check that the batch holds the samples from ``start`` on, in order."""
    labels = np.asarray(batch[1])
    expected = np.arange(start, start + len(labels)) % 100
    if not np.array_equal(labels, expected):
        raise ValueError(f"the batch from sample {start} on has the labels {labels}")


def _later(after: float | None, before: float | None) -> float | None:
    """Subtract, where both are known."""
    return None if after is None or before is None else after - before


def _difference(after: Usage, before: Usage) -> Usage:
    """Return what was used between the two."""
    faults = _later(after.minor_faults, before.minor_faults)
    return Usage(_later(after.cpu_s, before.cpu_s), None if faults is None else int(faults))


def _total(question: Question, parts: tuple[Answer, ...]) -> Answer:
    """Add up the answers of processes that ran at the same time."""
    samples = sum(part.samples for part in parts)
    batches = sum(part.batches for part in parts)
    cpu = [part.cpu_us_per_sample for part in parts]
    faults = [part.faults_per_batch for part in parts]
    others = [part.other_cores_busy for part in parts]
    return Answer(
        workload=question.workload,
        loader=question.loader,
        workers=question.workers,
        rate=sum(part.rate for part in parts),
        first_batch_ms=None,
        cpu_us_per_sample=_mean(cpu),
        faults_per_batch=_mean(faults),
        samples=samples,
        batches=batches,
        epochs=sum(part.epochs for part in parts),
        elapsed_s=max(part.elapsed_s for part in parts),
        # Each process counts its siblings, a core each, among the others.
        other_cores_busy=None
        if (other := _mean(others)) is None
        else max(0.0, other - (min(question.workers, usable_cores()) - 1)),
    )


def _mean(figures: list[float | None]) -> float | None:
    """Average the figures where all are known."""
    known = [figure for figure in figures if figure is not None]
    return sum(known) / len(known) if len(known) == len(figures) else None
