"""What a check finds: the kinds of findings, their places, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


ADVICE: Mapping[str, str] = MappingProxyType(  # what to do, by kind
    {
        "shared-handle": (
            "Open the file in the call, or on first use if it is an attribute of the dataset "
            "itself; or use PerThread(partial(open, path)), or os.pread; or hold one lock around "
            "seek and read."
        ),
        "shared-buffer": "Return a new array, or a copy.",
        **dict.fromkeys(
            ("shared-attribute", "class-attribute", "global-variable", "shared-container"),
            "Make it in the call, or on first use as an attribute of the dataset itself, of which "
            "each worker has a copy; or give each thread its own by PerThread; or, if the dataset "
            'leads to it, each worker by dataset_copy="deep"; or hold one lock around all uses.',
        ),
        "random-state": (
            "Draw from sample_rng(), or seed a new generator with sample_seed() in the call; then "
            "a sample is the same whatever the number of threads."
        ),
        "not-repeatable": (
            "Let it depend on its index alone, and draw random numbers from sample_rng() or seed "
            "a library's own generator with sample_seed() in the call: the loader can't isolate "
            "generators of C libraries, the system's random numbers or the clock."
        ),
        "thread-bound": "Make what belongs to a thread in the call, or by PerThread.",
        "process-state": (
            "Do it once, before the loop, or do without: use absolute paths, and pass values as "
            "arguments."
        ),
        "mixed-samples": (
            "Look for what the two calls share, in C libraries too; make it in the call, give "
            "each thread its own by PerThread, or hold one lock around it."
        ),
        "hang": "Take locks in one order, and don't wait for another sample in a sample.",
    }
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One reason why a dataset is not safe in threads.

    Args:
        kind: One of `ADVICE`.
        message: What happened, with names and values.
        line: The line of the user's code that did it, ``file:number``; None if there is none.
        index: The sample that showed it; None if it is of no single sample.
        name: Of what workers share; empty if that is not known.
    """

    kind: str
    message: str
    line: str | None = None
    index: Any = None
    name: str = ""

    def __str__(self) -> str:
        place = "" if self.line is None else f"{self.line}: "
        return f"{place}{self.kind}: {self.message}\n    {ADVICE[self.kind]}"


@dataclass(frozen=True, slots=True)
class Report:
    """What a check has found.

    Args:
        findings: The reasons why it is not safe; none if nothing was found.
        notes: What could not be checked.
        loads: Samples that were loaded one by one.
        together: Samples that many threads loaded at once.
    """

    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    loads: int = 0
    together: int = 0
