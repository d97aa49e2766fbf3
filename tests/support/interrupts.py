"""Ctrl-C at every instruction; a process of its own, see test_interrupts.py.

    python interrupts.py FORM STRIDE

Prints what is wrong, nothing if all is well, and then how many interrupts there were.
"""

# ruff: noqa: E402  # torch may be hidden from what is imported below

from __future__ import annotations

import dis
import faulthandler
import itertools
import os
import random
import signal
import sys
import threading
import time
import warnings
from _thread import interrupt_main
from typing import Any

TORCH = os.environ.get("INTERRUPTS_WITH_TORCH") == "1"
if not TORCH:
    sys.modules["torch"] = None  # type: ignore[assignment]  # importing it takes seconds

from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType

import numpy as np

import threadloader
from threadloader import ThreadLoader
from threadloader._batch import layout
from threadloader._worker import streams, worker_info

if TORCH:
    import torch


layout.SLOT_NBYTES = 1  # batches take slots of the ring, as large ones do
PATIENCE = 120.0  # seconds before a blocked call counts as a deadlock
HERE = os.path.dirname(threadloader.__file__)  # noqa: PTH120  # frames tell names, not paths
LIBRARY = os.path.dirname(threading.__file__)  # noqa: PTH120  # the same
OURS = (HERE, *(os.path.join(LIBRARY, f"{name}.py") for name in ("threading", "weakref")))  # noqa: PTH118
BATCHES = 5


def sample(index: int) -> Any:
    drawn = [random.getrandbits(20), np.random.randint(1 << 20)]  # noqa: NPY002
    if TORCH:
        drawn.append(int(torch.randint(1 << 20, ())))
    return np.array([index, *drawn])


class Rows:
    def __len__(self) -> int:
        return 4 * BATCHES

    def __getitem__(self, index: int) -> Any:
        return sample(index)


class Stream:
    def __len__(self) -> int:
        return 4 * BATCHES

    def __iter__(self) -> Iterator[Any]:
        return map(sample, range(4 * BATCHES))


def transformed(row: Any) -> Any:
    return row + random.getrandbits(20) * (row >= 4 * BATCHES)


def initialize(number: int) -> None:
    """Do nothing."""


OPTIONS: dict[str, dict[str, Any]] = {
    "map": {"threads": 2},
    "inline": {"threads": 0},
    "stream": {"threads": 1},
    "inline stream": {"threads": 0},
    "persistent": {"threads": 2, "persistent_workers": True},
    "transform": {"threads": 2, "transform": transformed},
    "unordered": {
        "threads": 2,
        "in_order": False,
        "timeout": PATIENCE,
        "worker_init_fn": initialize,
    },
}
FORMS = list(OPTIONS)


def make(form: str) -> Any:
    dataset: Any = Stream() if form in ("stream", "inline stream", "transform") else Rows()
    return ThreadLoader(dataset, 4, seed=5, **OPTIONS[form])


def numbers(batch: Any) -> list[Any]:
    return np.asarray(batch).tolist()  # type: ignore[no-any-return]


# What a life of a loader may be; each notes the batches that it gets in `seen`.


def read(loader: Any, seen: list[Any]) -> None:
    for batch in loader:
        seen.append(numbers(batch))  # noqa: PERF401  # what there is of it counts


def go_on(loader: Any, seen: list[Any]) -> None:
    iterator = iter(loader)
    seen.append(numbers(next(iterator)))
    len(loader)
    state = loader.state_dict()
    iterator.close()
    loader.load_state_dict(state)
    with loader:
        seen.append(numbers(next(iter(loader))))
    loader.close()


_looks: dict[CodeType, set[int]] = {}  # where the interpreter looks for signals, by code


class Interrupt(int):
    """Ctrl-C, pending from when `now` is looked up: no Python code runs for that."""

    now = property(interrupt_main)


class Tracer:
    """Lets Ctrl-C be pending before the n-th instruction at which the interpreter may look for it.

    That is how a signal is: it waits for such an instruction, and is raised there as its handler
    would.  An exception out of the tracer could come up where a signal can't, between the call of
    a lock's ``__enter__`` and its ``with`` block say.
    """

    def __init__(self, which: int) -> None:
        self._left = which
        self._pending = Interrupt(signal.SIGINT)
        self.where: str | None = None

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:  # noqa: ARG002
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._trace

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:  # noqa: ARG002
        if event != "opcode" or frame.f_lasti not in self._looks_of(frame.f_code):
            return self._trace
        self._left -= 1
        if self._left:
            return self._trace
        name = os.path.basename(frame.f_code.co_filename)  # noqa: PTH119  # frames tell names
        self.where = f"{name}:{frame.f_lineno} {frame.f_code.co_name}"
        sys.settrace(None)
        self._pending.now  # noqa: B018
        return None

    @staticmethod
    def _looks_of(code: CodeType) -> set[int]:
        offsets = _looks.get(code)
        if offsets is None:
            instructions = list(dis.get_instructions(code))
            offsets = _looks[code] = {
                instruction.offset
                for before, instruction in zip([None, *instructions], instructions, strict=False)
                if instruction.opname.startswith(("CALL", "RESUME", "JUMP_BACKWARD"))
                # CPython 3.14 looks behind ``__enter__``, too, and calls no ``__exit__`` then: its
                # fault, python/cpython issue 148874.
                and (before is None or before.opname != "LOAD_SPECIAL")
            }
        return offsets


LOST: list[Any] = []  # interrupts that Python itself has printed


def unraisable(lost: Any) -> None:
    """Note an interrupt that came up as a finalizer began, which nobody can catch; print others."""
    last = lost.exc_traceback
    while last.tb_next is not None:
        last = last.tb_next
    code = last.tb_frame.f_code
    begins = last.tb_lineno == code.co_firstlineno
    place = os.path.basename(code.co_filename), code.co_name  # noqa: PTH119
    if begins and place in {("_lifetime.py", "first"), ("own_copy.py", "__del__")}:
        LOST.append(lost.exc_value)
    else:
        sys.__unraisablehook__(lost)


def interrupted(life: Callable[[Any, list[Any]], None], loader: Any, which: int) -> Any:
    """Live, with an interrupt; return where it was, the batches seen, and what is wrong."""
    tracer, seen, wrong = Tracer(which), [], []
    came = False
    LOST.clear()
    try:
        sys.settrace(tracer)
        life(loader, seen)
        sys.settrace(None)
        end = time.monotonic() + (10 if tracer.where is not None and not LOST else 0)
        while time.monotonic() < end:
            time.sleep(0.01)  # it came up in a finalizer, and is to come again
    except KeyboardInterrupt:
        came = True
    except BaseException as error:  # noqa: BLE001  # told
        wrong.append(f"became {error!r}")
    finally:
        sys.settrace(None)
    if tracer.where is not None and not (came or wrong or LOST):
        wrong.append("was lost")
    return tracer.where, seen, wrong


def in_thread(function: Callable[[], Any]) -> Any:
    """Return what a function does in another thread: this one may hold a lock that it needs."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()), daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return results[0] if results else "hangs"


def outside() -> list[Any]:
    """Return what a loader changes while it loads."""
    patched = [dict(vars(module)) for module in (random, np.random, np.random.mtrand)]
    return [*patched, type(random._inst), streams.here.stream, worker_info.pass_seed_here()]  # type: ignore[attr-defined]  # noqa: SLF001


OUTSIDE = outside()


def as_comparable(form: str, batches: Any) -> Any:
    return sorted(batches) if form == "unordered" and isinstance(batches, list) else batches


def resumed(form: str, loader: Any, seen: list[Any], epochs: list[Any]) -> Iterator[str]:
    """Yield what is wrong with a state that is saved now: each batch was seen, or follows, once."""
    other = make(form)
    other.load_state_dict(loader.state_dict())
    rest = list(map(numbers, other))
    other.close()
    all_ = as_comparable(form, seen + rest)
    if all_ not in (epochs[0], as_comparable(form, epochs[0] + epochs[1])):
        yield f"of {BATCHES} batches {len(seen)} were seen, and a state goes on with {len(rest)}"


def usable(form: str, loader: Any, epochs: list[Any]) -> Iterator[str]:
    """Yield what is wrong with the next epochs, here and in another thread, and with close()."""

    def load() -> Any:
        return as_comparable(form, list(map(numbers, loader)))

    def is_right(got: Any) -> bool:
        if form == "unordered" and len(got) == BATCHES - 1:
            return any(all(batch in epoch for batch in got) for epoch in epochs)
        return any(got in (epoch, epoch[1:]) for epoch in epochs)

    for got in (load(), in_thread(load)):
        if not is_right(got):
            yield f"the next epoch is {got if isinstance(got, str) else len(got)}"
    if in_thread(loader.close) is not None:
        yield "close() hangs"


def ended() -> Iterator[str]:
    """Yield what closed loaders have left behind."""
    end = time.monotonic() + PATIENCE
    while left := [name for thread in threading.enumerate() if (name := thread.name)[:2] == "tl"]:
        if time.monotonic() > end:
            yield f"{left} are still running"
            break
        time.sleep(0.001)
    if outside() != OUTSIDE:
        yield "random functions, or what they draw from, are not what they were"


def at_each_instruction(form: str, stride: int) -> int:
    """Interrupt lives of a loader, at one instruction after the other; return how often."""
    reference = make(form)
    epochs = [as_comparable(form, list(map(numbers, reference))) for _ in range(6)]
    reference.close()
    count = 0
    # Forms share most of the code: each begins elsewhere, and so is interrupted between the others.
    first = 1 + FORMS.index(form) * stride // len(FORMS)
    for life in (read, go_on):
        for which in itertools.count(first, stride):
            faulthandler.dump_traceback_later(PATIENCE, exit=True)
            loader = make(form)
            where, seen, wrong = interrupted(life, loader, which)
            if where is None:
                loader.close()
                break
            if life is read:
                wrong += resumed(form, loader, seen, epochs)
            wrong += usable(form, loader, epochs)
            wrong += ended()
            tell(f"{form}, {life.__name__}, {which}, {where}", wrong)
            count += 1
    faulthandler.cancel_dump_traceback_later()
    return count


def tell(what: str, wrong: Iterable[str]) -> None:
    for message in wrong:
        sys.stdout.write(f"{what}: {message}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.unraisablehook = unraisable
    warnings.simplefilter("ignore", UserWarning)  # of an iterable that is read again
    _, form, stride = sys.argv
    tell("interrupts", [str(at_each_instruction(form, int(stride)))])
