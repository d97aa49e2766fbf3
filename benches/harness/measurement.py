"""The measured process: one loader, one workload, four steps.

`benches.harness.asking` starts it by way of `benches.harness.child`, and the same steps are taken
for every loader:

1. Import the loader, make the dataset, fetch one sample, bring the allocator into the
   state of a process that has run for a while. Not timed.
2. Construct the loader, start an epoch, take the first batch: the time to the
   first batch, threads or processes started within it included.
3. Finish the epoch, counting its samples. This is the warm-up, and not timed:
   caches fill, torch's persistent workers and their queues are up, buffers exist.
4. Iterate whole epochs until the time asked for is over: the rate. Whole epochs
   only, for a batch that is loaded ahead must not count for less than one
   delivered; so the start and the end of an epoch are in the rate, for all alike.
   A loader so slow that an epoch takes several times as long is stopped within it, and so is
   a long warm-up.

Workloads of another kind than ``"rate"`` stop after the second step and begin again, or time
whole jobs, as `benches.workloads.catalog.Kind` says.
"""

from __future__ import annotations

import gc
import math
import sys
import time
from contextlib import suppress
from dataclasses import asdict, replace
from importlib import import_module
from itertools import chain, repeat
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from benches.harness.delivered import compare, samples_in
from benches.harness.machine import describe, usable_cores
from benches.harness.record import Answer, Question
from benches.harness.usage import Meter, measure_pss_mib
from benches.loaders.catalog import Loader, Setup, import_rival
from benches.workloads.catalog import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Callable

    from benches.workloads.catalog import Workload

__all__ = ["answer", "compared", "measure"]

WARM = 1.5  # times the seconds asked for, after which a first epoch that goes on is left
PATIENCE = 3  # the same of later epochs, where that is longer than:
PATIENCE_S = 0.7
# What threads work on in parallel must not be left within an epoch: of the batches that they are
# about to finish, loaders have different numbers.
PATIENCE_PARALLEL_S = 2.5
# A process that is kept makes a large dataset once for all rounds of its workload.
_latest_dataset: dict[tuple[str, int, int], Any] = {}
MOST_STARTS = 50  # of a loader, where only the first batch is measured
SLOW_START_S = 2.0  # a start that takes longer is not repeated: its warm-up is the figure


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Answer a `Question` by an `Answer`, both as plain values."""
    found = _answer(Question(**question))
    return asdict(replace(found, machine=describe()))


def _answer(question: Question) -> Answer:
    """Measure in this process, and in the limit's processes."""
    if question.loader == "processes":
        from benches.loaders.processes import measure_together

        return _total(measure_together(question, measure))
    kind = WORKLOADS[question.workload].kind
    if kind == "rate":
        return measure(question)
    return _measure_jobs(question) if kind == "job" else _measure_starts(question)


def compared(question: dict[str, Any]) -> int:
    """Compare a short epoch with the dataset; return the number of samples."""
    asked = Question(**question)
    workload = WORKLOADS[asked.workload]
    rival = import_rival(asked.loader)
    setup = make_setup(asked, workload, batches=1 if workload.parallel else 3)
    loader = rival(setup)
    samples = compare(workload, setup.dataset, loader)
    loader.close()
    return samples


def make_setup(question: Question, workload: Workload, batches: int | None = None) -> Setup:
    """Return what the loader is asked to do, its dataset made and used once.

    Args:
        question: What to measure.
        workload: The one that the question names.
        batches: For each worker, where an epoch shall be shorter than the workload's.
    """
    key = (question.workload, question.spin, workload.length(question.workers, batches))
    if key not in _latest_dataset:
        _latest_dataset.clear()
        _latest_dataset[key] = workload.make(key[2], question.spin)
    dataset = _latest_dataset[key]
    if workload.source != "shards":
        dataset[0]  # the first photo makes Pillow load its plug-ins
    torch = sys.modules.get("torch")
    if torch is not None:
        # As torch's own worker processes have it: threads that load do not start threads each.
        torch.set_num_threads(1)
    return Setup(
        dataset,
        workload.batch_size,
        question.workers,
        question.output,
        shuffle=workload.shuffle,
        collate=workload.collate_fn(),
        source=workload.source,
    )


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
        ValueError: The loader delivered more or fewer samples than it should.
    """
    workload = WORKLOADS[question.workload]
    if workload.figure == "pss_mib":
        with suppress(ImportError):  # who trains has imported it, whatever loads the data
            import_module("torch.utils.data")
    rival = import_rival(question.loader)
    setup = make_setup(question, workload)
    settle_allocator()
    gc.collect()
    before_mib = measure_pss_mib()

    started = time.perf_counter()
    loader = rival(setup)
    epoch = iter(loader)
    first = next(epoch)
    first_batch_ms = (time.perf_counter() - started) * 1000
    delivered = samples_in(first)
    # No batch is kept beyond its turn: that would cost a loader another buffer.
    del first
    for batch in epoch:
        delivered += samples_in(batch)
        if time.perf_counter() - started > WARM * question.seconds:
            break
    else:
        if delivered != len(setup.dataset):
            raise ValueError(f"{delivered} of {len(setup.dataset)} samples were delivered")
    del batch, epoch
    before_rate()

    meter = Meter()
    patience = max(PATIENCE * question.seconds, _patience(workload))
    samples = batches = 0
    while meter.seconds() < question.seconds or not batches:
        for batch in loader:
            samples += samples_in(batch)
            batches += 1
            if meter.seconds() > patience:
                break
    figures = meter.figures(samples, batches)
    del batch
    after_rate(loader)
    pss_mib = measure_pss_mib()
    counters = loader.counters()
    loader.close()
    return Answer(
        **figures,
        first_batch_ms=first_batch_ms,
        pss_mib=pss_mib,
        pss_added_mib=None if pss_mib is None or before_mib is None else pss_mib - before_mib,
        counters=counters,
    )


def _patience(workload: Workload) -> float:
    """Return the seconds after which an epoch may be left."""
    if workload.figure == "pss_mib":
        return math.inf  # memory is what it is when all samples have been read
    return PATIENCE_PARALLEL_S if workload.parallel else PATIENCE_S


def _measure_starts(question: Question) -> Answer:
    """Make loader after loader, and take the first batch of each; the first one is the warm-up."""
    workload = WORKLOADS[question.workload]
    rival = import_rival(question.loader)
    setup = make_setup(question, workload)
    times: list[float] = []
    meter = Meter()
    while True:
        started = time.perf_counter()
        loader = rival(setup)
        epoch = iter(loader)
        first = next(epoch)
        times.append(time.perf_counter() - started)
        del first, epoch
        loader.close()
        del loader
        enough = len(times) > 1 and meter.seconds() > question.seconds
        if enough or len(times) > MOST_STARTS or meter.seconds() > SLOW_START_S:
            break
    used = meter.figures(workload.batch_size * len(times), len(times))
    usual = median(times[1:] or times)
    return Answer(
        rate=workload.batch_size / usual,
        first_batch_ms=usual * 1000,
        cpu_us_per_sample=used["cpu_us_per_sample"],
        pss_mib=measure_pss_mib(),
    )


def _measure_jobs(question: Question) -> Answer:
    """Do whole jobs until the time is over, each from the constructor until its loader is closed.

    Raises:
        ValueError: A job's epochs had another number of samples than they should.
    """
    workload = WORKLOADS[question.workload]
    rival = import_rival(question.loader)
    setup = make_setup(question, workload)
    settle_allocator()
    gc.collect()
    meter = Meter()
    patience = max(PATIENCE * question.seconds, PATIENCE_PARALLEL_S)
    samples = batches = jobs = 0
    done = True
    while meter.seconds() < question.seconds:
        loader = rival(setup)
        for batch in chain.from_iterable(repeat(loader, workload.epochs)):
            samples += samples_in(batch)
            batches += 1
            done = meter.seconds() < patience
            if not done:
                break
        del batch
        loader.close()
        del loader
        jobs += 1
    figures = meter.figures(samples, batches)
    if done and samples != jobs * workload.epochs * len(setup.dataset):
        raise ValueError(f"{samples} samples in {jobs} jobs of {workload.epochs} epochs")
    return Answer(
        rate=figures["rate"],
        cpu_us_per_sample=figures["cpu_us_per_sample"],
        pss_mib=measure_pss_mib(),
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


def _total(parts: tuple[Answer, ...]) -> Answer:
    """Add up the answers of processes that ran at the same time."""
    others = _mean([part.other_cores_busy for part in parts])
    siblings = min(len(parts), usable_cores()) - 1  # each counts these, a core each, as others
    return Answer(
        rate=sum(part.rate for part in parts),
        cpu_us_per_sample=_mean([part.cpu_us_per_sample for part in parts]),
        faults_per_batch=_mean([part.faults_per_batch for part in parts]),
        other_cores_busy=None if others is None else max(0.0, others - siblings),
    )


def _mean(figures: list[float | None]) -> float | None:
    """Average the figures where all are known."""
    known = [figure for figure in figures if figure is not None]
    return sum(known) / len(known) if len(known) == len(figures) else None
