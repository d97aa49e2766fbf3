"""The question and the answer of one measurement: two lines of JSON.

Both cross the border between interpreters of different versions, so they hold
plain values only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
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
    """

    workload: str
    loader: str
    workers: int
    seconds: float
    spin: int = 0
    output: Output | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The figures of one measurement; None for what is not measured, or not told by the platform.

    Args:
        rate: Samples a second over whole epochs, the first epoch excluded; of a job, from the
            constructor to the end of its last epoch.
        first_batch_ms: From just before the loader is constructed to its first
            batch; None for the limit, whose processes do not share a batch.
        cpu_us_per_sample: CPU time of this process and its worker processes, in microseconds.
        faults_per_batch: Minor page faults after the first epoch, likewise.
        other_cores_busy: CPU that others used meanwhile, in cores: a figure
            far above 0 spoils the measurement.
        pss_mib: Memory of this process and all that it has started, after the last epoch, shared
            pages divided among those that share them, in MiB.
        pss_added_mib: The same, less what there was before the loader was made: its batches and
            workers, but not the dataset.
        counters: The loader's own counters at the end.
        machine: What `benches.harness.machine.describe` says.
    """

    rate: float
    first_batch_ms: float | None = None
    cpu_us_per_sample: float | None = None
    faults_per_batch: float | None = None
    other_cores_busy: float | None = None
    pss_mib: float | None = None
    pss_added_mib: float | None = None
    counters: dict[str, float] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)

    @property
    def slots_beyond_window(self) -> float | None:
        """Slots that ThreadLoader made beyond those of its window."""
        made = self.counters.get("slots_made")
        return None if made is None else made - self.counters["window"]
