"""What one measurement is asked, and what it answers: the two JSON lines of a run.

Both cross the border between interpreters of different versions, so they hold
plain values only.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

__all__ = ["Answer", "Output", "Question"]

Output = Literal["numpy"]


@dataclass(frozen=True, slots=True)
class Question:
    """One loader on one workload.

    Args:
        workload: A name in `benches.workloads.catalog.WORKLOADS`.
        loader: A name in `benches.loaders.catalog.LOADERS`.
        workers: Threads or processes that load; the bare loop ignores it.
        seconds: Least time to measure the rate for; whole epochs are measured.
        spin: Iterations of the pure-Python workload; 0 where it is not asked for.
        output: ``"numpy"``, or None for what the loader gives by itself.
        buffers: Batches that each process of the limit writes in turn.
        started: When the question was asked, of `time.monotonic`, in seconds; None where nobody
            wants to know how long the process took to its first batch.
    """

    workload: str
    loader: str
    workers: int
    seconds: float
    spin: int = 0
    output: Output | None = None
    buffers: int = 1
    started: float | None = None

    def to_json(self) -> str:
        """Return the question as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Question:
        """Read what `to_json` wrote."""
        return cls(**json.loads(line))


@dataclass(frozen=True, slots=True)
class Answer:
    """The figures of one measurement.

    Args:
        workload: As asked.
        loader: As asked.
        workers: As asked.
        rate: Samples a second over whole epochs, the first epoch excluded; of a job, from the
            constructor to the end of its last epoch.
        first_batch_ms: From just before the loader is constructed to its first
            batch; None for the limit, whose processes do not share a batch.
        cpu_us_per_sample: CPU time of this process and its worker processes,
            in microseconds; None where the platform does not tell.
        faults_per_batch: Minor page faults after the first epoch, likewise.
        samples: Samples in ``elapsed_s``.
        batches: Batches in ``elapsed_s``.
        epochs: Epochs in ``elapsed_s``.
        elapsed_s: Seconds that ``rate`` was measured over.
        other_cores_busy: CPU that others used meanwhile, in cores: a figure
            far above 0 spoils the measurement.
        uncached: Modules compiled in the measured process; on CPython 3.13t
            their constants are reference-counted, which slows threads down.
        process_ms: From the start of the process to the first batch, in milliseconds; None
            where the process had answered before.
        pss_mib: Memory of this process and all that it has started, after the last epoch, shared
            pages divided among those that share them, in MiB; None where the platform does not
            tell.
        pss_added_mib: The same, less what there was before the loader was made: its batches and
            workers, but not the dataset.
        counters: The loader's own counters at the end.
        machine: What `benches.harness.machine.describe` says.
    """

    workload: str
    loader: str
    workers: int
    rate: float
    first_batch_ms: float | None
    cpu_us_per_sample: float | None
    faults_per_batch: float | None
    samples: int
    batches: int
    epochs: int
    elapsed_s: float
    other_cores_busy: float | None = None
    process_ms: float | None = None
    pss_mib: float | None = None
    pss_added_mib: float | None = None
    uncached: list[str] = field(default_factory=list)
    counters: dict[str, float] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the answer as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Answer:
        """Read what `to_json` wrote."""
        return cls(**json.loads(line))
