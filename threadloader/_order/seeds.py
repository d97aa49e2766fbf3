"""The seed of each epoch: drawn from the random state that torch draws from, or from ``seed=``.

One number an epoch decides everything that its workers draw.  With ``seed`` that number, and the
order, follow from ``seed`` and the number of the epoch alone, with torch and without; no random
state is touched.  An epoch that is resumed draws the same from the user's generator as before, and
nothing from the process's random state.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from threadloader import _torch
from threadloader.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Mapping


_input = struct.Struct("<QQ").pack
_MASK = (1 << 64) - 1
_EPOCH = b"epoch"
_RANK = b"rank"
_STREAMS = b"streams"


class EpochSeeds(NamedTuple):
    """The seeds of all random numbers in one epoch."""

    workers: int  # the base seed: a worker's own seed is this plus its number
    samples: int | None  # for the streams of samples and batches; None where they draw from none
    common: int = 0  # of all ranks and workers: for a pass over an iterable dataset


class Seeds:
    """The seeds of one loader's epochs.

    Threads:
        all: planner only.
    """

    def __init__(self) -> None:
        self.epoch = 0  # the number of the epoch that begins next
        self.base: int | None = None  # the base seed that was drawn last
        self.since = 0  # epochs since the base seed was drawn
        self.agreed: int | None = None  # the seed that the ranks agreed on, which gave none

    def begin_epoch(
        self, seed: int | None, given: Any, saved: Mapping[str, Any] | None
    ) -> EpochDraws:
        """Go on to the next epoch; return its random draws.

        Args:
            seed: The loader's ``seed``; None to draw from ``given``.
            given: The user's generator; None for the process's random state.
            saved: The loader's state to go on from; None for none.

        Raises:
            StateError: The state is that of another kind of generator.
        """
        drawn: Mapping[str, Any] = {}
        begun = False
        if saved is not None:
            self.epoch, drawn, begun = saved["epoch"], saved["draws"], saved["begun"]
            if "base" in drawn:
                self.base, self.since = drawn["base"], drawn["since"] - 1
            self.agreed = drawn.get("agreed", self.agreed)
        epoch, self.epoch = self.epoch, self.epoch + 1
        if seed is not None:
            order, base = epoch_seed(seed, epoch), streams_seed(seed, epoch)
            return EpochDraws(self, _torch.new_generator(order), order_seed=order, base=base)
        if given is not None and "generator" in drawn:
            restore_generator(given, drawn["generator"])
        return EpochDraws(self, given, drawn=drawn, begun=begun)

    def state(self, given: Any, *, kept: bool) -> dict[str, Any]:
        """Return what decides the seeds of the next epoch, JSON-able.

        Args:
            given: The user's generator; None for none.
            kept: Whether workers are kept, and with them their seed.
        """
        state: dict[str, Any] = {}
        if given is not None:
            state["generator"] = encoded_state(state_of(given))
        if kept and self.base is not None:
            state |= {"base": self.base, "since": self.since + 1}
        return state | self.agreed_state()

    def agreed_state(self) -> dict[str, Any]:
        """Return the part of a state that says what the ranks agreed on, JSON-able."""
        return {} if self.agreed is None else {"agreed": self.agreed}


class EpochDraws:
    """The random draws of one epoch, before its first batch.

    Args:
        seeds: Of the loader.
        generator: Draws; None for the process's random state.
        order_seed: Decides the order, if the loader has a ``seed``, which decides all draws.
        base: The base seed of the workers; None to draw it.
        drawn: What was drawn before, if the epoch is resumed; the ``"draws"`` of a saved state.
        begun: Whether that state is of this very epoch, not of the end of the one before.

    Threads:
        all: planner only.
    """

    def __init__(
        self,
        seeds: Seeds,
        generator: Any,
        *,
        order_seed: int | None = None,
        base: int | None = None,
        drawn: Mapping[str, Any] | None = None,
        begun: bool = False,
    ) -> None:
        drawn = drawn or {}
        self.generator = generator
        self.order_seed = order_seed
        self.seeded = seeded = order_seed is not None
        self._base = base
        self._seeds = seeds
        self._start = None if seeded or generator is None else state_of(generator)
        # Whether the same is drawn as before.
        self._redraws = begun and self._start is not None and drawn["since"] == 0
        self._has_base = "base" in drawn
        self._state: dict[str, Any] | None = None

    def seeds(
        self, *, kept: bool, rank: int = 0, replicas: bool = False, streams: bool = True
    ) -> EpochSeeds:
        """Return the seeds of the epoch.

        Args:
            kept: Whether the workers of the epoch before go on: torch draws only for new ones.
            rank: Whose samples have the positions that other ranks' samples have, too.
            replicas: Whether workers have replicas, each with one stream for all of its samples.
            streams: Whether samples draw from streams of their own.
        """
        seeds = self._seeds
        fresh = self._redraws if self._has_base else self.seeded or not kept
        if fresh:
            drawn = draw_seed(self.generator)  # also if it is not used: the order is drawn after it
            seeds.base, seeds.since = drawn if self._base is None else self._base, 0
        else:
            seeds.since += 1
        base = seeds.base
        if base is None:
            msg = "workers are kept, but no seed was ever drawn for them"
            raise RuntimeError(msg)
        common = epoch_seed(base, seeds.since) if seeds.since else base
        samples = rank_seed(common, rank)
        self._drawn_base = base
        if replicas and (self.seeded or self.generator is not None):
            base = rank_seed(base, rank)  # of a generator that all ranks have alike, too
        self._epoch = EpochSeeds(base, samples if streams else None, common)
        self._since = seeds.since
        return self._epoch

    def state(self) -> dict[str, Any]:
        """Return the draws, JSON-able."""
        if self.seeded:
            return self._seeds.agreed_state()
        if self._state is None:
            state: dict[str, Any] = {"base": self._drawn_base, "since": self._since}
            if self._start is not None:
                state["generator"] = encoded_state(self._start)
            self._state = state
        return self._state | self._seeds.agreed_state()


def draw_seed(generator: Any) -> int:
    """Draw 63 bits from ``generator``; None for the process's random state."""
    if generator is not None and isinstance(generator, np.random.Generator):
        return int(generator.integers(1 << 63))
    return _torch.draw_base_seed(generator)


# Keys: random bits that follow from a seed and a position, and from nothing else.


def key_of(seed: int, position: int, purpose: bytes, nbytes: int = 16) -> bytes:
    """Return what generators are keyed with, in 0.6 us.

    Two different triples of seed, position and purpose give keys without any relation.

    Source: BLAKE2b (RFC 7693), with the purpose as its personalisation, 16 bytes at most.

    Args:
        seed: Of the epoch, say; its lowest 64 bits count.
        position: The same.
        purpose: What the key is for.
        nbytes: 64 at most.
    """
    return hashlib.blake2b(
        _input(seed & _MASK, position & _MASK), digest_size=nbytes, person=purpose
    ).digest()


def epoch_seed(seed: int, epoch: int) -> int:
    """Return 63 bits for one of several epochs that have ``seed`` in common.

    Args:
        seed: Of all these epochs.
        epoch: The number of the epoch, from 0.
    """
    return int.from_bytes(key_of(seed, epoch, _EPOCH)[:8], "little") >> 1


def rank_seed(seed: int, rank: int) -> int:
    """Return 63 bits for one of several ranks that have ``seed`` in common; rank 0 has the seed."""
    return int.from_bytes(key_of(seed, rank, _RANK)[:8], "little") >> 1 if rank else seed


def streams_seed(seed: int, epoch: int) -> int:
    """Return 63 bits for the random streams of an epoch; `epoch_seed` is for its order."""
    return int.from_bytes(key_of(seed, epoch, _STREAMS)[:8], "little") >> 1


# States of torch's and NumPy's generators: taken, written as JSON, and restored.


def state_of(generator: Any) -> bytes | Mapping[str, Any]:
    """Return the state of a generator, in microseconds; not yet as JSON.

    Args:
        generator: A ``torch.Generator`` or ``numpy.random.Generator``; None for torch's random
            state of the process.
    """
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return _torch.generator_state(generator)


def encoded_state(state: bytes | Mapping[str, Any]) -> dict[str, Any]:
    """Return a state that `state_of` returned, as JSON; about 4 KB for a generator of torch's."""
    if isinstance(state, bytes):
        return {"torch": base64.b64encode(zlib.compress(state)).decode("ascii")}
    return {"numpy": _plain(state)}


def restore_generator(generator: Any, encoded: Mapping[str, Any]) -> None:
    """Give a generator a state that `encoded_state` returned.

    Raises:
        StateError: The state is that of another library's generator, or of another kind.
    """
    try:
        if isinstance(generator, np.random.Generator):
            generator.bit_generator.state = _arrays(encoded["numpy"])
        else:
            state = zlib.decompress(base64.b64decode(encoded["torch"]))
            _torch.set_generator_state(generator, state)
    except (KeyError, TypeError, ValueError, RuntimeError, zlib.error) as error:
        msg = f"the state has another kind of generator than {generator!r}"
        raise StateError(msg) from error


def _plain(state: Mapping[str, Any]) -> Any:
    """Return a state of NumPy's with lists in place of arrays."""

    def plain(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return {"dtype": value.dtype.name, "values": value.tolist()}
        return value.item()  # a number of NumPy's

    return json.loads(json.dumps(state, default=plain))


def _arrays(encoded: Any) -> Any:
    """Undo `_plain`."""

    def decode(part: dict[str, Any]) -> Any:
        is_array = part.keys() == {"dtype", "values"}
        return np.array(part["values"], dtype=part["dtype"]) if is_array else part

    return json.loads(json.dumps(encoded), object_hook=decode)
