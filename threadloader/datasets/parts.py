"""What a client of a remote store gives for a range: bytes, and which file they are of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["MIB", "Client", "Part", "TransferError", "Version"]

MIB = 1 << 20  # bytes


@dataclass(frozen=True, slots=True)
class Version:
    """What tells a file from the one that was there before under its name."""

    size: int  # bytes
    tag: str  # an ETag, or when it was changed; empty if the store tells neither


@dataclass(frozen=True, slots=True)
class Part:
    """A range of a file."""

    data: bytes  # what was asked for; less only where the file ends
    version: Version
    ranged: bool = True  # whether only this range came, and not the whole file


class TransferError(OSError):
    """The answer to one request is no use: an error status, or too few bytes.

    Args:
        message: What was wrong with it.
        status: HTTP's, if that is what was wrong.
        retry_after: Seconds that the server wants to be left alone.
    """

    def __init__(
        self, message: str, status: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


class Client(Protocol):
    """Reads ranges, each with one request or two, and tries nothing again.

    Threads:
        all: shared.
    """

    def read(self, url: str, offset: int, nbytes: int) -> Part:
        """Return ``nbytes`` bytes (at least 1) from ``offset`` on, fewer at the file's end.

        Raises:
            Exception: Whatever went wrong.
        """

    def forget(self, url: str) -> None:
        """Forget what was learnt of a file."""

    def close(self) -> None:
        """Let go of idle connections."""
