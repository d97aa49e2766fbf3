"""The places in a sample at which another thread can run: found by tracing, and held there.

In the user's code a place is an instruction that may use something shared; in a library's, a line.
Instructions on local variables are left out: to hold a thread before one is to hold it before the
next.
"""

from __future__ import annotations

import dis
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from threadloader._check.sharing import locks_held
from threadloader._check.whose_code import OURS, USER, line_of_frame, whose

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import CodeType, FrameType

    from threadloader._check.findings import Line
    from threadloader._check.sharing import Sharing
    from threadloader._check.states import SharedObject

__all__ = [
    "Hold",
    "LineTracer",
    "Recording",
    "Step",
    "Write",
    "chosen_steps",
    "steps_beside",
    "trace_nothing",
]

MOST_STEPS = 20_000  # that are recorded of a sample
MOST_OF_USER, MOST_OF_LIBRARY = 300, 60  # that a thread is held at
MOST_BESIDE = 10  # the same, while the other thread is held, too
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


class LineTracer:
    """Calls `reached` at each place; given to `sys.settrace`."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        owner = whose(frame.f_code.co_filename)
        if event != "call" or owner == OURS:
            return None
        if owner == USER:
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            return self._in_user
        return self._in_library

    def _in_user(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any]:
        if event == "opcode" and frame.f_lasti in _instructions(frame.f_code):
            self.reached(frame)
            self.count += 1
        return self._in_user

    def user_only(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        """Trace the user's code alone; for `sys.settrace`."""
        user = whose(frame.f_code.co_filename) == USER
        return self(frame, event, argument) if user else None

    def _in_library(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any]:
        if event == "line":
            self.reached(frame)
            self.count += 1
        return self._in_library

    def reached(self, frame: FrameType) -> None:
        """Act on a place, before it is run."""


class Step(NamedTuple):
    """A place in a sample."""

    key: tuple[CodeType, int]
    line: Line | None
    user: bool
    held: frozenset[int]  # the ids of the locks that are held


class Write(NamedTuple):
    """A change of something that is shared."""

    step: int  # the number of the step that made it
    part: SharedObject
    name: str
    line: Line | None
    held: frozenset[int]


class Recording(LineTracer):
    """The places of one sample, and what it changes of what is shared.

    Args:
        sharing: What is shared.
        watched: The parts of it that are looked at, at every place.
    """

    def __init__(self, sharing: Sharing, watched: Sequence[SharedObject] = ()) -> None:
        super().__init__()
        self.steps: list[Step] = []
        self.writes: list[Write] = []
        self._sharing, self._watched = sharing, watched
        self._before: dict[int, Any] = {id(part): part.state() for part in watched}

    def reached(self, frame: FrameType) -> None:
        """Note a place, and what the one before it has changed."""
        if len(self.steps) >= MOST_STEPS:
            return
        held = locks_held(self._sharing.locks)
        self.look(held)
        user = whose(frame.f_code.co_filename) == USER
        line = line_of_frame(frame)
        self.steps.append(Step((frame.f_code, frame.f_lasti), line, user, held))

    def look(self, held: frozenset[int] = frozenset()) -> None:
        """Note what has changed; call it once more at the end of the sample."""
        changed = self._sharing.changed(self._before, of=self._watched)
        if not changed:
            return
        last = self.steps[-1] if self.steps else None
        if last is not None:
            held &= last.held  # a lock that the step itself took or let go does not count
        for part in changed:
            state = part.state()
            name = part.name(self._before[id(part)], state)
            self._before[id(part)] = state
            line = None if last is None else last.line
            self.writes.append(Write(len(self.steps) - 1, part, name, line, held))

    def orders(self) -> dict[tuple[int, int], Line | None]:
        """Return the ids of each two locks, of which the second is taken while the first is held.

        Returns:
            For each two, the line that takes the second.
        """
        found: dict[tuple[int, int], Line | None] = {}
        before, line = frozenset[int](), None
        for step in self.steps:
            for taken in step.held - before:
                for kept in step.held & before:
                    found.setdefault((kept, taken), line)
            before, line = step.held, step.line
        return found

    @property
    def locks(self) -> frozenset[int]:
        """The locks that the sample takes."""
        return frozenset().union(*(step.held for step in self.steps))


class Hold(LineTracer):
    """Calls a function once, when a sample has come to a place.

    Args:
        step: The number of the place.
        function: Called there, in the thread that loads the sample.
    """

    def __init__(self, step: int, function: Callable[[], None]) -> None:
        super().__init__()
        self._step, self._function = step, function

    def reached(self, frame: FrameType) -> None:  # noqa: ARG002  # see `LineTracer`
        """Call the function if this is the place."""
        if self.count == self._step:
            self._function()


def chosen_steps(recording: Recording, taken: frozenset[int]) -> list[int]:
    """Return the steps at which it matters that another thread runs.

    A place in a loop is taken at its first and at its last time.

    Args:
        recording: Of the sample.
        taken: The ids of the locks that the other thread takes: where one of them is held, it would
            only wait.
    """
    first: dict[Any, int] = {}
    last: dict[Any, int] = {}
    for number, step in enumerate(recording.steps):
        if not step.held & taken:
            first.setdefault(step.key, number)
            last[step.key] = number
    every = sorted({*first.values(), *last.values()})
    near = {
        number
        for write in recording.writes
        for number in (write.step, write.step + 1)
        if number < len(recording.steps) and not recording.steps[number].held & taken
    }
    user = [number for number in every if recording.steps[number].user]
    library = [number for number in every if not recording.steps[number].user]
    return sorted(
        {
            *_some(sorted(near), MOST_OF_LIBRARY),
            *_some(user, MOST_OF_USER),
            *_some(library, MOST_OF_LIBRARY),
        }
    )


def steps_beside(
    recording: Recording, parts: set[int], taken: frozenset[int]
) -> list[tuple[int, Write]]:
    """Return the steps before and after the changes of parts, each with the change.

    Args:
        recording: Of the sample.
        parts: Their ids.
        taken: See `chosen_steps`.
    """
    found = {
        number: write
        for write in recording.writes
        for number in (write.step, write.step + 1)
        if id(write.part) in parts
        and 0 <= number < len(recording.steps)
        and not recording.steps[number].held & taken
    }
    return [(number, found[number]) for number in _some(sorted(found), MOST_BESIDE)]


def _some(numbers: list[int], most: int) -> list[int]:
    """Return at most so many, spread evenly."""
    if len(numbers) <= most:
        return numbers
    return [numbers[i * len(numbers) // most] for i in range(most)]
