"""torch's random state in a worker: the seeding functions, and a generator that is set to a key.

`torch.manual_seed` and its like get their code exchanged, as they may have been imported long
ago (see `worker_info`).
"""

from __future__ import annotations

import inspect
import warnings
from contextlib import contextmanager, suppress
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from threadloader._torch.random_mode import OperatorsByMode
from threadloader._torch.random_ops import OperatorsByKey
from threadloader._torch.random_values import WRITING, References, writes_as_torch_does

if TYPE_CHECKING:
    from collections.abc import Iterator

    from threadloader._torch.random_ops import RandomOperators

__all__ = ["KeyedGenerator", "teach_random"]


# Four words of a Mersenne twister's state, and what it makes of them.
_STATE = (0x00000001, 0x243F6A88, 0x9E3779B9, 0xFFFFFFFF)
_DRAWN: Any = memoryview(np.array([0x00400091, 0xD6DDCA52, 0xC0AA8D7C, 0x6FE01BF8], np.uint32))  # type: ignore[arg-type]


def teach_random(here: Any) -> RandomOperators:
    """Redirect torch's random functions in threads that ask for it.  Call once.

    Args:
        here: A `threading.local`; its ``stream`` has the thread's ``torch_generator``, or is None.

    Returns:
        The redirection of operators; it has to be kept.
    """
    names: dict[str, Any] = {"_threadloader_streams": here}
    for name, code in _EXCHANGED.items():
        function = inspect.unwrap(getattr(torch.random, name))
        if function.__code__ is code:  # by a call that Ctrl-C interrupted
            continue
        names[f"_threadloader_{name}"] = FunctionType(function.__code__, function.__globals__)
        vars(torch.random).update(names)
        with suppress(ValueError):  # a function of another kind: it is left alone
            function.__code__ = code
    try:
        writes = writes_as_torch_does(_generator_of_known_words, _DRAWN)
        references = {name: References() for name in WRITING if writes}
        operators = OperatorsByKey(
            here,
            {name: partial(WRITING[name], references=each) for name, each in references.items()},
        )
        if _works(operators, here):
            with _trying(operators, here, 2):
                for name, each in references.items():
                    each.learn(name)
            return operators
    except Exception:  # noqa: BLE001, S110  # whatever torch has changed
        pass
    warnings.warn(
        f"torch {torch.__version__} lacks what random operators are redirected by; another way is "
        "used, which misses dropout, torch.nn.init and scripted code",
        stacklevel=2,
    )
    return OperatorsByMode(here)


def _works(operators: OperatorsByKey, here: Any) -> bool:
    """Return whether draws come from the thread's stream and leave the global state alone."""
    expected = torch.Generator().manual_seed(1)
    state = torch.default_generator.get_state()
    with _trying(operators, here, 1):
        drawn = [
            torch.rand(1, generator=generator, device="cpu")  # the user may have set another
            for generator in (torch.default_generator, None)
        ]
    works = all(
        torch.equal(each, torch.rand(1, generator=expected, device="cpu")) for each in drawn
    )
    if not works:
        torch.default_generator.set_state(state)
    return works


@contextmanager
def _trying(operators: OperatorsByKey, here: Any, seed: int) -> Iterator[None]:
    """Let the calling thread draw from a stream that has a generator, and no words."""

    class Trial:
        torch_generator = torch.Generator().manual_seed(seed)
        torch_generator_for = staticmethod(lambda words: Trial.torch_generator)  # noqa: ARG005
        take_torch_words = staticmethod(lambda count: -1)  # noqa: ARG005  # as a stream's

    before = here.stream
    here.stream = Trial
    try:
        with operators.redirecting():
            yield
    finally:
        here.stream = before


def _generator_of_known_words() -> Any:
    """Return a generator that draws the words of `_DRAWN` next."""
    keyed, tail = KeyedGenerator(), np.zeros(KeyedGenerator.TAIL, np.uint64)
    tail[: len(_STATE)] = _STATE
    keyed.begin(0, tail.data, KeyedGenerator.TAIL)
    return keyed.generator


class KeyedGenerator:
    """A ``torch.Generator`` of the CPU that is set to a state of given words.

    ``manual_seed`` would keep 32 bits of a key: of 100,000 samples, two would likely share one.
    Source: ``CPUGeneratorImplStateLegacy`` in aten/src/ATen/CPUGeneratorImpl.cpp, and
    ``mt19937_engine`` in aten/src/ATen/core/MT19937RNGEngine.h.
    """

    WORDS = 624  # of 32 bits, the state of a Mersenne twister
    TAIL = 24  # words at the end of the state that are drawn first
    HEAD = WORDS - TAIL
    _OFFSET = 24  # bytes: seed, words left, whether it is seeded, next word
    _seeded = torch.Generator().manual_seed(0).get_state().numpy()

    def __init__(self) -> None:
        self.generator = torch.Generator()
        state: Any = self._seeded.copy()
        self._state = torch.from_numpy(state)
        self._seed = memoryview(state[:8].view("u8"))
        self._left = memoryview(state[8:12].view("i4"))
        self._next = memoryview(state[16:24].view("u8"))
        self._words = self._words_in(state)
        self._head = self._words[: self.HEAD]
        self._tail = memoryview(self._words[self.HEAD :])

    def set(self, seed: int, words: Any) -> None:
        """Set the state.

        Args:
            seed: The value of ``initial_seed()``.
            words: ``WORDS // 2`` random numbers of 64 bits.
        """
        self._seed[0] = seed
        self._left[0], self._next[0] = 1, 0
        self._words[:] = words.view("u4")
        self.generator.set_state(self._state)

    def begin(self, seed: int, tail: Any, left: int, head: Any = None) -> None:
        """Set the end of the state, from which words are drawn first.

        Before more are drawn, the rest is to be set by `complete`, if it is not given here.

        Args:
            seed: The value of ``initial_seed()``.
            tail: ``TAIL`` random numbers of 32 bits, as they are in a state.
            left: How many of them are to be drawn; the others were drawn already.
            head: ``HEAD // 2`` random numbers of 64 bits, or None.
        """
        self._seed[0] = seed
        self._left[0], self._next[0] = left + 1, self.WORDS - left
        self._tail[:] = tail
        if head is not None:
            self._head[:] = head.view("u4")
        self.generator.set_state(self._state)

    def complete(self, head: Any) -> None:
        """Set all other words of a state that was begun, wherever it is now.

        Args:
            head: ``HEAD // 2`` random numbers of 64 bits.
        """
        state = self.generator.get_state()
        self._words_in(state.numpy())[: self.HEAD] = head.view("u4")
        self.generator.set_state(state)

    def _words_in(self, state: Any) -> Any:
        return state[self._OFFSET : self._OFFSET + 8 * self.WORDS].view("u8")


# What follows runs with the globals of torch.random.


def _manual_seed(seed: Any) -> Any:
    stream = _threadloader_streams.stream  # type: ignore[name-defined]  # noqa: F821
    if stream is None:
        return _threadloader_manual_seed(seed)  # type: ignore[name-defined]  # noqa: F821
    return stream.torch_generator.manual_seed(int(seed))


def _seed() -> Any:
    stream = _threadloader_streams.stream  # type: ignore[name-defined]  # noqa: F821
    if stream is None:
        return _threadloader_seed()  # type: ignore[name-defined]  # noqa: F821
    return stream.torch_generator.seed()


def _get_rng_state() -> Any:
    stream = _threadloader_streams.stream  # type: ignore[name-defined]  # noqa: F821
    if stream is None:
        return _threadloader_get_rng_state()  # type: ignore[name-defined]  # noqa: F821
    return stream.torch_generator.get_state()


def _set_rng_state(new_state: Any) -> Any:
    stream = _threadloader_streams.stream  # type: ignore[name-defined]  # noqa: F821
    if stream is None:
        return _threadloader_set_rng_state(new_state)  # type: ignore[name-defined]  # noqa: F821
    return stream.torch_generator.set_state(new_state)


_EXCHANGED = {
    "manual_seed": _manual_seed.__code__,
    "seed": _seed.__code__,
    "get_rng_state": _get_rng_state.__code__,
    "set_rng_state": _set_rng_state.__code__,
}
