"""What a check finds: the kinds of findings, their places, and what to do."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["KINDS", "Finding", "Kind", "Line", "Report"]


class Line(NamedTuple):
    """A line of code."""

    file: str
    line: int  # from 1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Kind(NamedTuple):
    """A kind of finding."""

    title: str  # what is wrong, for people
    advice: str  # what to do


_PRIVATE = (
    "Make it in the call, or keep it on the dataset itself, of which each worker has a copy; or "
    'give each thread its own by PerThread, or each worker by dataset_copy="deep"; or hold one '
    "lock around all of its uses."
)

KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "shared-handle": Kind(
            "Workers read one file handle, whose position each of them moves",
            "Open the file in the call, or on first use if it is an attribute of the dataset "
            "itself; or use PerThread(partial(open, path)), or os.pread; or hold one lock around "
            "seek and read.",
        ),
        "shared-buffer": Kind(
            "A sample is memory that a later sample overwrites",
            "Return a new array, or a copy.",
        ),
        "shared-attribute": Kind("An attribute of an object that workers share", _PRIVATE),
        "class-attribute": Kind("An attribute of a class, which all workers share", _PRIVATE),
        "global-variable": Kind("A global variable, which all workers share", _PRIVATE),
        "shared-container": Kind(
            "A list, dict, array or iterator that workers share",
            _PRIVATE,
        ),
        "random-state": Kind(
            "A random generator that workers share",
            "Draw from sample_rng(), or seed a new generator with sample_seed() in the call; then "
            "a sample is the same whatever the number of threads.",
        ),
        "not-repeatable": Kind(
            "A sample is different each time it is loaded",
            "Let it depend on its index alone, and draw random numbers from sample_rng() or seed a "
            "library's own generator with sample_seed() in the call: the loader can't isolate "
            "generators of C libraries, the system's random numbers or the clock.",
        ),
        "own-attribute": Kind(
            "A sample depends on what its worker loaded before",
            "Let a sample depend on its index alone: which worker loads which samples is chance.",
        ),
        "thread-bound": Kind(
            "A sample can't be loaded in another thread than the main one",
            "Make what belongs to a thread in the call, or by PerThread.",
        ),
        "process-state": Kind(
            "A sample changes what belongs to the whole process",
            "Do it once, before the loop, or do without: use absolute paths, and pass values as "
            "arguments.",
        ),
        "mixed-samples": Kind(
            "Samples come out wrong when two threads load at once",
            "Look for what the two calls share, in C libraries too; make it in the call, give each "
            "thread its own by PerThread, or hold one lock around it.",
        ),
        "hang": Kind(
            "Two threads that load at once wait for each other",
            "Take locks in one order, and don't wait for another sample in a sample.",
        ),
        "crash": Kind(
            "Native code ends the process when two threads load at once",
            "Give each thread its own of the object that this line uses, by PerThread, or hold one "
            "lock around all of its uses.",
        ),
        "gil-enabled": Kind(
            "An import switches the GIL on, so that threads take turns",
            "Update the package, do without it, or set PYTHON_GIL=0 if it is known to be safe.",
        ),
        "large-dict": Kind(
            "dict.get on another thread's dict takes 20 us on CPython 3.13 without the GIL",
            "Use d[key], give each thread its own by PerThread(partial(dict, d)), or set "
            'dataset_copy="deep"; Python 3.14 has repaired it.',
        ),
    }
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One reason why a dataset is not safe in threads.

    Args:
        kind: One of `KINDS`.
        message: What happened, with names and values.
        line: The line of the user's code that did it; None if there is none.
        index: The sample that showed it; None if it is of no single sample.
    """

    kind: str
    message: str
    line: Line | None = None
    index: Any = None

    @property
    def advice(self) -> str:
        """What to do."""
        return KINDS[self.kind].advice

    def __str__(self) -> str:
        place = "" if self.line is None else f"{self.line}: "
        return f"{place}{self.kind}: {self.message}\n    {self.advice}"

    def as_dict(self) -> dict[str, Any]:
        """Return the finding, JSON-able."""
        return {
            "kind": self.kind,
            "message": self.message,
            "advice": self.advice,
            "file": None if self.line is None else self.line.file,
            "line": None if self.line is None else self.line.line,
            "index": self.index if isinstance(self.index, int | str | None) else repr(self.index),
        }


@dataclass(frozen=True, slots=True)
class Report:
    """What a check has found.

    Args:
        dataset: Its name.
        findings: The reasons why it is not safe; none if nothing was found.
        notes: What could not be checked.
        loads: Samples that were loaded.
        interleavings: Places at which another thread loaded samples meanwhile.
    """

    dataset: str
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    loads: int
    interleavings: int

    def as_dict(self) -> dict[str, Any]:
        """Return the report, JSON-able."""
        return asdict(self) | {"findings": [finding.as_dict() for finding in self.findings]}
