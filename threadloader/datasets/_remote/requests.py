"""Requests: what one returns, which failures are tried again, how often, and after which wait.

A client of a store has ``read(url, offset, nbytes)``, which makes one or two requests and never
tries again; all threads share it.

A wait is random between nothing and a bound that doubles, so threads that failed together do not
come back together.  If a server says when to come back, that is obeyed, up to a limit.

Source: "full jitter" of Marc Brooker, Exponential Backoff And Jitter, AWS Architecture Blog, 2015.
"""

from __future__ import annotations

import random
import ssl
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from threadloader._authors import stops_here, wait
from threadloader.datasets._urls import shown_url, without_secrets
from threadloader.errors import ClosedError, RemoteError, ThreadLoaderError, checked_count

if TYPE_CHECKING:
    from collections.abc import Callable

    from threadloader._authors import Stop


T = TypeVar("T")

MIB = 1 << 20  # bytes
TRANSIENT = frozenset({408, 425, 429})  # HTTP: timed out, too early, too many; and all from 500 on
# Another try can't change these, though they are OSErrors or come from a client's own code.
PERMANENT = (
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
    ThreadLoaderError,
    ValueError,
    ssl.CertificateError,
)


class Version(NamedTuple):
    """The version of a file: it differs from that of an earlier file of the same name."""

    size: int  # bytes
    tag: str  # an ETag, or the time of the last change; empty if the store tells neither


class FetchedRange(NamedTuple):
    """A range of a file, as a client returns it."""

    data: bytes  # the range that was asked for; shorter only where the file ends
    version: Version


class TransferError(OSError):
    """The answer to one request can't be used: it has an error status, or too few bytes.

    Args:
        message: What is wrong with the answer.
        status: HTTP's, if the status is what is wrong.
        retry_after: Seconds that the server asks to wait.
    """

    def __init__(
        self, message: str, status: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


@dataclass(frozen=True, slots=True)
class Retries:
    """How often and when a failed read is tried again.

    Args:
        attempts: Tries of one read, the first included, at least 1.
        first: Bound of the first wait, in seconds; each later bound is twice the one before.
        longest: Bound of all waits, in seconds, also of those that the server asks for.

    Raises:
        ValueError: An argument is out of its range.
    """

    __module__ = "threadloader.datasets"  # its public place, which pickles name

    attempts: int = 6
    first: float = 0.1
    longest: float = 20.0

    def __post_init__(self) -> None:
        checked_count("attempts", self.attempts, at_least=1)
        if not 0 <= self.first <= self.longest:
            msg = f"0 <= first <= longest must hold, not first={self.first}, longest={self.longest}"
            raise ValueError(msg)

    def wait_s(self, failed: int, asked: float | None, draw: Callable[[], float]) -> float:
        """Return the seconds to wait.

        Args:
            failed: Tries so far, at least 1.
            asked: Seconds that the server asks for; None if it does not.
            draw: Returns a random number in [0, 1).
        """
        bound = min(self.longest, self.first * 2.0 ** min(failed - 1, 60))
        if asked is None:
            return bound * draw()
        # Not before the server's time, and not all threads at once.
        return min(self.longest, asked + self.first * draw())


def with_retries(
    read: Callable[[], T], retries: Retries, url: str, offset: int | None, *stops: Stop
) -> T:
    """Return the result of ``read()``; try again while it fails in a way that may pass.

    Args:
        read: Makes one request.
        retries: How often and when.
        url: Of the file, for errors.
        offset: Where in the file, in bytes, for errors; None if that is nowhere.
        stops: End a wait; so does the end of the calling worker.

    Raises:
        RemoteError: It fails for good; names URL and offset, and has the last error as its cause.
        ClosedError: One of ``stops`` was set meanwhile.
        ThreadLoaderError: ``read`` raised it.
    """
    stops = (*stops, *stops_here())
    begun, failed = monotonic(), 0
    last: Exception | None = None
    while last is None:
        if any(stop.is_set for stop in stops):
            msg = f"{shown_url(url)}: the file or its loader was closed while it was read"
            raise ClosedError(msg)
        try:
            return read()
        except ThreadLoaderError:
            raise
        except Exception as error:  # noqa: BLE001  # whatever a store's client raises
            failed += 1
            draw = random.SystemRandom().random  # leave the sample's random numbers alone
            seconds = retries.wait_s(failed, getattr(error, "retry_after", None), draw)
            if failed == retries.attempts or not is_transient(error):
                last = error
        # Not in the handler, which would keep the error and its frames alive during the wait.
        if last is None:
            wait(stops, seconds)
    # Nor here: the original error, as context, may tell a secret.
    cause = without_secrets(last, url)
    name = "" if isinstance(cause, TransferError) else f"{type(cause).__name__}: "
    tries = f"after {failed} tries in {monotonic() - begun:.1f} s: " if failed > 1 else ""
    try:
        raise RemoteError(f"{tries}{name}{cause}", shown_url(url), offset=offset) from cause
    finally:
        del last, cause  # the error keeps this frame, and the frame would keep them


def is_transient(error: Exception) -> bool:
    """Whether another try may succeed.

    An HTTP status decides, if the client tells one.  Otherwise an error of the operating system may
    pass, unless it is about the file itself, and so may any exception of a client's own class.
    """
    status = _status_of(error)
    if status == 400 and type(error.__cause__).__name__ == "HttpProcessingError":
        return True  # aiohttp's own status for an answer that it could not read
    if status is not None:
        return status in TRANSIENT or status >= 500
    if isinstance(error, PERMANENT):
        return False
    return isinstance(error, (OSError, EOFError)) or type(error).__module__ != "builtins"


def _status_of(error: Exception) -> int | None:
    """Return the HTTP status, by the names of aiohttp, gcsfs, requests and botocore."""
    response: Any = getattr(error, "response", None)
    if isinstance(response, dict):
        found: int | None = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return found
    places = ((response, "status_code"), (error, "status"), (error, "code"))
    told = (getattr(place, name, None) for place, name in places)  # aiohttp warns of its `code`
    return next((each for each in told if isinstance(each, int) and 100 <= each < 600), None)
