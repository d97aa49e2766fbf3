"""Samples made by pure Python, which holds the GIL all the time.

The amount of work is a number of iterations, not a time: it is calibrated once,
by the process that starts the measurements, and every rival is then given the same number.
"""

from __future__ import annotations

import time

from benches.workloads.catalog import Dataset

__all__ = ["PurePython", "calibrate"]

SAMPLE_S = 0.0002


def spin(iterations: int, seed: int) -> int:
    """Run a linear congruential generator.

    Args:
        iterations: Steps.
        seed: First value.

    Returns:
        The last value, in ``[0, 2**31)``.

    Source: the constants of ISO C's example of ``rand``.
    """
    value = seed
    for _ in range(iterations):
        value = (value * 1_103_515_245 + 12_345) & 0x7FFF_FFFF
    return value


class PurePython(Dataset):
    """Numbers that take ``iterations`` steps of pure Python each.

    Args:
        length: Samples.
        iterations: Steps a sample, at least 1.

    Raises:
        ValueError: ``iterations`` is below 1: nobody has calibrated it.
    """

    def __init__(self, length: int, iterations: int) -> None:
        if iterations < 1:
            raise ValueError(f"iterations must be at least 1, got {iterations}: calibrate them")
        super().__init__(length)
        self._iterations = iterations

    def __getitem__(self, index: int) -> tuple[int, int]:
        """Return the number and its label."""
        return spin(self._iterations, index), index % 100


def calibrate(sample_s: float = SAMPLE_S) -> int:
    """Return the iterations that take ``sample_s`` seconds in one thread.

    The fastest of many short tries counts: others on the machine only make a
    try slower, never faster.
    """
    tried = 1000
    best = min(_seconds(tried) for _ in range(200))
    return max(1, round(tried * sample_s / best))


def _seconds(iterations: int) -> float:
    """Time one call of `spin`."""
    started = time.perf_counter()
    spin(iterations, 1)
    return time.perf_counter() - started
