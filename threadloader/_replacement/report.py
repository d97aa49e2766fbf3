"""What is measured of a program's loaders, by the places where it makes them: batches and waits."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

from threadloader._fetch.program_code import is_users, short_path
from threadloader._lifetime.dropping import DROPPED
from threadloader._replacement.memory import MemoryMeter

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

__all__ = ["LoaderRates", "Made", "RunReport", "made_here"]

IN_PROCESS = "torch, in-process"


class StepsDone(SystemExit):
    """A loader has delivered the steps that were asked for: the program ends, without an error."""


@dataclass(frozen=True, slots=True)
class MadeAt:
    """Where a loader was made.

    Two loaders that a function makes for two of its callers have two places.
    """

    lines: tuple[tuple[str, int], ...]  # files and lines of the program, the innermost first
    inside: tuple[tuple[str, int], ...]  # those of packages that the program called
    package: str | None  # that made the loader, if it is none of the program's own

    def __str__(self) -> str:
        if not self.lines:
            return self.package or "?"
        file, line = self.lines[0]
        by = f" ({self.package})" if self.package else ""
        return f"{short_path(file)}:{line}{by}"

    @property
    def callers(self) -> str:
        """The lines that led to the innermost one."""
        return ", ".join(f"{short_path(file)}:{line}" for file, line in self.lines[1:])


def made_here(frame: FrameType | None) -> MadeAt:
    """Return the place of a loader that is being made.

    Args:
        frame: The innermost frame that may be the program's.
    """
    lines: list[tuple[str, int]] = []
    inside: list[tuple[str, int]] = []
    package = None
    while frame is not None:
        file, name = frame.f_code.co_filename, str(frame.f_globals.get("__name__", ""))
        if is_users(file) and not file.startswith("<frozen"):
            lines.append((file, frame.f_lineno))
        elif not (lines or name.startswith(("torch.utils.data", "threadloader."))):
            package = package or name.partition(".")[0]
            inside.append((file, frame.f_lineno))
        if name == "__main__" and frame.f_code.co_name == "<module>":
            break
        frame = frame.f_back
    return MadeAt(tuple(lines), tuple(inside), package)


class Made:
    """What is kept on a loader.  A copy of the loader knows no more than where it was made.

    Args:
        place: Where it was made.
    """

    def __init__(self, place: MadeAt) -> None:
        self.place = place
        self.reason: str | None = None  # why torch loads; None while nothing is against threads
        self.twin: Any = None  # the arguments and the `ThreadLoader` that were used last

    def __reduce__(self) -> tuple[type[Made], tuple[MadeAt]]:
        return Made, (self.place,)


@dataclass(slots=True, eq=False)
class LoaderRates:
    """All loaders of one place of the program.

    Threads:
        all: the consumer's; of two consumers at once some numbers may be lost.
    """

    report: RunReport
    place: MadeAt
    num_workers: int  # as the program has it
    loaded_by: str = IN_PROCESS
    reason: str | None = None  # why torch loads
    passes: int = 0
    batches: int = 0
    wait_seconds: float = 0.0  # in `iter` and `next`
    first_seconds: float | None = None  # from `iter` to the first batch, of the first pass
    digests: list[str] = field(default_factory=list)  # of the first batches
    _began: float = 0.0
    _first_delivery: float = 0.0
    _last_delivery: float = 0.0

    @property
    def rate(self) -> float | None:
        """Batches a second, from the first delivery to the last; None of fewer than two."""
        seconds = self._last_delivery - self._first_delivery
        return (self.batches - 1) / seconds if self.batches > 1 and seconds > 0 else None

    def begins(self, reason: str | None, loaded_by: str | None = None) -> None:
        """Note that a pass begins.

        Args:
            reason: Why torch loads; None if it does not, or was asked to.
            loaded_by: In words; by default by torch, as it would.
        """
        processes = f"torch, {self.num_workers} process{'es' if self.num_workers > 1 else ''}"
        self.loaded_by = loaded_by or (processes if self.num_workers else IN_PROCESS)
        self.reason = reason
        self.passes += 1
        self._began = perf_counter()

    def waited(self, seconds: float) -> None:
        """Count seconds that the program waited for its loader."""
        self.wait_seconds += seconds

    def next_of(self, advance: Callable[[], Any]) -> Any:
        """Return the next batch, measured.

        Raises:
            StepsDone: All steps that were asked for were delivered.
        """
        try:
            if self.report.steps is not None and self.batches >= self.report.steps:
                raise StepsDone(0)
            began = perf_counter()
            try:
                batch = advance()
            finally:
                self.wait_seconds += perf_counter() - began
            self._delivered(batch)
            return batch
        finally:
            advance = batch = DROPPED  # an error keeps this frame

    def _delivered(self, batch: Any) -> None:
        now = self._last_delivery = perf_counter()
        if self.first_seconds is None:
            self.first_seconds = now - self._began
            self._first_delivery = now
        self.batches += 1
        if len(self.digests) < self.report.hashed:
            from threadloader._check.contents import contents  # noqa: PLC0415  # if asked for

            self.digests.append(str(contents(batch)))
        self.report.memory.sample()

    def as_json(self) -> dict[str, Any]:
        """Return the row for a file."""
        return {
            "made_at": str(self.place),
            "called_from": self.place.callers,
            "num_workers": self.num_workers,
            "loaded_by": self.loaded_by,
            "left_alone_because": self.reason,
            "passes": self.passes,
            "batches": self.batches,
            "first_batch_seconds": self.first_seconds,
            "wait_seconds": self.wait_seconds,
            "batches_a_second": self.rate,
            "digests": self.digests,
        }


class RunReport:
    """All loaders that a program iterates over.

    Args:
        steps: Batches of one loader after which the program ends; None for no end.
        hashed: First batches of each loader of which a digest is kept.
    """

    def __init__(self, steps: int | None = None, hashed: int = 0) -> None:
        self.steps = steps
        self.hashed = hashed
        self.memory = MemoryMeter()
        self.began = perf_counter()
        self._rows: dict[tuple[MadeAt, int], LoaderRates] = {}

    @property
    def rows(self) -> list[LoaderRates]:
        """The loaders, in the order of their first passes."""
        return list(self._rows.values())

    def row(self, place: MadeAt, loader: Any) -> LoaderRates:
        """Return the row of a loader."""
        key = place, loader.num_workers
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = LoaderRates(self, *key)
        return row

    def as_json(self) -> dict[str, Any]:
        """Return the report for a file; the run ends here."""
        peak, kind = self.memory.peak()
        return {
            "seconds": perf_counter() - self.began,
            "peak_memory_bytes": peak,
            "peak_memory_kind": kind,
            "loaders": [row.as_json() for row in self.rows],
        }
