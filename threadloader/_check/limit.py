"""How long a check may take, and when two threads count as waiting for each other."""

from __future__ import annotations

from concurrent.futures import TimeoutError as NotYetError
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from threadloader._check.loading import Loading

__all__ = ["HangError", "Limit"]

HANG_SECONDS = 60.0  # in which no sample ends: the least that counts as waiting for each other
SLOWER = (
    20  # times as long as the slowest one so far may be a sample that many threads load at once
)


class HangError(Exception):
    """Two threads wait for each other, and can't be stopped."""


class Limit:
    """The time that a check has for its tries, and the patience with each of them.

    Args:
        loading: Counts the samples that end.
        seconds: For all tries; the one that runs then is the last.
        tell: Called with what is tried now, and how often it was.
        clock: Returns seconds.

    Threads:
        is_over: shared.
        all others: the one that checks.
    """

    def __init__(
        self,
        loading: Loading,
        seconds: float,
        tell: Callable[[str, int], None],
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._loading, self._clock, self._seconds, self.tell = loading, clock, seconds, tell
        self._end = clock() + seconds

    def again(self) -> None:
        """Let the time begin anew, for tries of another kind."""
        self._end = self._clock() + self._seconds

    def is_over(self) -> bool:
        """Whether there is no time for another try."""
        return self._clock() >= self._end

    def result(self, future: Future[Any]) -> Any:
        """Return what a job returns while others run.

        Raises:
            HangError: No sample has ended for long, neither of this job nor of another.
        """
        while True:
            ended = self._loading.ended
            try:
                return future.result(HANG_SECONDS + SLOWER * self._loading.slowest)
            except NotYetError:
                if self._loading.ended == ended:
                    raise HangError from None
