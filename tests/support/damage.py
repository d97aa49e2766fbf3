"""Damage that a file's bytes may take, at random: bits, blocks, parts that are gone or doubled."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

__all__ = ["DAMAGES", "Damage"]

Damage = tuple[bytes, range]  # the file, and where it is not what it was, or begins to be shifted


def flipped(data: bytes, rng: Random) -> Damage:
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :], range(at, at + 1)


def overwritten(data: bytes, rng: Random) -> Damage:
    at = rng.randrange(len(data))
    new = rng.choice([rng.randbytes, bytes])(min(rng.randint(1, 700), len(data) - at))
    return data[:at] + new + data[at + len(new) :], range(at, at + len(new))


def cut_off(data: bytes, rng: Random) -> Damage:
    at = rng.randrange(len(data))
    return data[:at], range(at, len(data))


def cut_out(data: bytes, rng: Random) -> Damage:
    at = rng.randrange(len(data))
    return data[:at] + data[at + rng.randint(1, 1500) :], range(at, at + 1)


def doubled(data: bytes, rng: Random) -> Damage:
    at = rng.randrange(len(data))
    again = data[at : at + rng.randint(1, 1500)]
    return data[:at] + again + data[at:], range(at, at + len(again) + 1)


DAMAGES: list[Callable[[bytes, Random], Damage]] = [flipped, overwritten, cut_off, cut_out, doubled]
