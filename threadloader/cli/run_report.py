"""What is measured of a program's loaders, by the places where it makes them: batches and waits."""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import islice
from time import perf_counter
from traceback import walk_stack
from typing import TYPE_CHECKING, Any, NamedTuple

from threadloader._lifetime import DROPPED
from threadloader._worker.program_code import is_users, short_path

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


class Place(NamedTuple):
    """Where a loader was made; two calls in one line, or of one function, are two places."""

    stack: tuple[tuple[str, Any], ...]  # files, and lines with columns, the innermost first
    name: str  # the program's line, and the package that made the loader if it did not do so itself


def made_here(frame: FrameType) -> Place:
    """Return the place of a loader that is being made.

    Args:
        frame: The innermost frame that may be the program's.
    """
    stack, line, package = [], "", ""
    for each, number in walk_stack(frame):
        file, module = each.f_code.co_filename, str(each.f_globals.get("__name__", ""))
        position = next(islice(each.f_code.co_positions(), each.f_lasti // 2, None), number)
        stack.append((file, position))
        if is_users(file):
            line = line or f"{short_path(file)}:{number}"
        elif not (line or package or module.startswith(("torch.utils.data", "threadloader."))):
            package = module.partition(".")[0]
        if module == "__main__" and each.f_code.co_name == "<module>":
            break
    by = f" ({package})" if package and line else package
    return Place(tuple(stack), f"{line}{by}")


@dataclass(slots=True, eq=False)
class LoaderRates:
    """All loaders of one place of the program that were loaded in one way.

    Threads:
        all: the consumer's; of two consumers at once some numbers may be lost.
    """

    made_at: str
    num_workers: int  # as the program has it
    loaded_by: str
    left_alone_because: str | None  # why torch loads
    passes: int = 0
    batches: int = 0
    first_batch_seconds: float | None = None  # from `iter` to the first batch, of the first pass
    wait_seconds: float = 0.0  # in `iter` and `next`
    batches_a_second: float | None = None
    _steps: int | None = None
    _began: float = 0.0
    _first_delivery: float = 0.0

    def begun(self, begin: Callable[[], Any]) -> Any:
        """Begin a pass; return its iterator."""
        self.passes += 1
        self._began = perf_counter()
        try:
            return begin()
        finally:
            self.wait_seconds += perf_counter() - self._began

    def next_of(self, advance: Callable[[], Any]) -> Any:
        """Return the next batch, measured.

        Raises:
            SystemExit: All steps that were asked for were delivered: the program ends.
        """
        if self._steps is not None and self.batches >= self._steps:
            raise SystemExit(0)
        began = perf_counter()
        try:
            batch = advance()
        finally:
            advance = DROPPED  # an error keeps this frame
            now = perf_counter()
            self.wait_seconds += now - began
        if self.first_batch_seconds is None:
            self.first_batch_seconds, self._first_delivery = now - self._began, now
        elif now > self._first_delivery:
            self.batches_a_second = self.batches / (now - self._first_delivery)
        self.batches += 1
        return batch


class RunReport:
    """All loaders that a program iterates over.

    Args:
        steps: Batches of one loader after which the program ends; None for no end.
    """

    def __init__(self, steps: int | None = None) -> None:
        self.steps = steps
        self.began = perf_counter()
        self._rows: dict[Any, LoaderRates] = {}

    def row(self, place: Place, num_workers: int, by: str, why: str | None) -> LoaderRates:
        """Return the row of a loader, of who loads it, and of why torch does so."""
        row = LoaderRates(place.name, num_workers, by, why, _steps=self.steps)
        return self._rows.setdefault((place, num_workers, by, why), row)

    def as_json(self) -> dict[str, Any]:
        """Return the report for a file; the run ends here."""
        shown = [each.name for each in fields(LoaderRates) if not each.name.startswith("_")]
        rows = [{name: getattr(row, name) for name in shown} for row in self._rows.values()]
        names = [row["made_at"] for row in rows]
        for number, (row, name) in enumerate(zip(rows, names, strict=True), 1):
            if names.count(name) > 1:
                row["made_at"] += f" #{names[:number].count(name)}"
        return {"seconds": perf_counter() - self.began, "loaders": rows}
