"""The places in a sample at which another thread can run: found by tracing, and held there.

In the user's code a place is an instruction that may use something shared; in a library's, a line.
Instructions on local variables are left out: to hold a thread before one is to hold it before the
next.
"""

from __future__ import annotations

import dis
from functools import cache
from traceback import walk_stack
from typing import TYPE_CHECKING, Any, NamedTuple

from threadloader._check.whose_code import OURS, USER, innermost, whose

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import CodeType, FrameType

    from threadloader._check.findings import Line
    from threadloader._check.sharing import SharedObject


MOST_STEPS = 20_000  # that are recorded of a sample
MOST_OF_USER, MOST_BESIDE = 120, 40  # at which a thread is held
_LOCAL = (
    *("LOAD_FAST", "STORE_FAST", "DELETE_FAST", "LOAD_CONST", "LOAD_SMALL_INT", "LOAD_CLOSURE"),
    *("POP_", "PUSH_NULL", "COPY", "SWAP", "NOP", "CACHE", "RESUME", "PRECALL", "KW_NAMES"),
    *("JUMP", "EXTENDED_ARG", "MAKE_", "BUILD_", "UNPACK_", "RETURN_", "IS_OP", "NOT_TAKEN"),
    *("TO_BOOL", "END_", "MAKE_CELL", "COPY_FREE_VARS", "LIST_EXTEND", "SETUP_", "RERAISE"),
)


@cache
def _instructions(code: CodeType) -> frozenset[int]:
    """Return the offsets of the instructions that may use something shared."""
    return frozenset(
        step.offset for step in dis.get_instructions(code) if not step.opname.startswith(_LOCAL)
    )


def trace_nothing(_: FrameType, __: str, ___: Any) -> None:
    """Look at no function; for `sys.settrace`, between two samples."""


class Tracer:
    """Counts the places of a sample; given to `sys.settrace`.

    Args:
        reached: Called before a place is run, with its number and its frame; None for none.
        libraries: Whether places in libraries count.
    """

    def __init__(
        self, reached: Callable[[int, FrameType], None] | None, *, libraries: bool = True
    ) -> None:
        self._count = 0
        self._reached, self._libraries = reached, libraries

    def __call__(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        owner = whose(frame.f_code.co_filename)
        if event != "call" or owner == OURS or not (self._libraries or owner == USER):
            return None
        if owner == USER:
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._in_code

    def _in_code(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any]:
        if event == "line" or (event == "opcode" and frame.f_lasti in _instructions(frame.f_code)):
            if self._reached is not None:
                self._reached(self._count, frame)
            self._count += 1
        return self._in_code


class Step(NamedTuple):
    """A place in a sample."""

    key: tuple[CodeType, int]
    line: Line | None
    user: bool


class Write(NamedTuple):
    """A change of something that is shared."""

    step: int  # the number of the step that made it
    part: SharedObject
    name: str
    line: Line | None


class Recording:
    """The places of one sample, and what it changes of what is shared.

    Args:
        watched: The parts of it that are looked at, at every place.
    """

    def __init__(self, watched: Sequence[SharedObject]) -> None:
        self.steps: list[Step] = []
        self.writes: list[Write] = []
        self._watched = watched
        self._states = [part.state() for part in watched]

    def reached(self, number: int, frame: FrameType) -> None:
        """Note a place, and what the one before it has changed."""
        if number < MOST_STEPS:
            self.look()
            user = whose(frame.f_code.co_filename) == USER
            key, line = (frame.f_code, frame.f_lasti), innermost(walk_stack(frame))
            self.steps.append(Step(key, line, user))

    def look(self) -> None:
        """Note what has changed; call it once more at the end of the sample."""
        line = self.steps[-1].line if self.steps else None
        for place, part in enumerate(self._watched):
            before, state = self._states[place], part.state()
            if state != before:
                self._states[place] = state
                name = part.name(before, state)
                self.writes.append(Write(len(self.steps) - 1, part, name, line))


def chosen_steps(recording: Recording) -> list[int]:
    """Return the steps at which it matters that another thread runs.

    They are those beside a change of what is shared, and those in the user's code: what a C library
    changes does not show.  A place in a loop is taken at its first and at its last time.
    """
    user = [(number, step.key) for number, step in enumerate(recording.steps) if step.user]
    first, last = ({key: number for number, key in some} for some in (user[::-1], user))
    near = {write.step + later for write in recording.writes for later in (0, 1)}
    near &= {*range(len(recording.steps))}
    ends = {*first.values(), *last.values()}
    return sorted({*_spread(sorted(near), MOST_BESIDE), *_spread(sorted(ends), MOST_OF_USER)})


def _spread(numbers: list[int], most: int) -> list[int]:
    """Return at most so many, spread evenly."""
    if len(numbers) <= most:
        return numbers
    return [numbers[i * len(numbers) // most] for i in range(most)]
