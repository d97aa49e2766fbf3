"""What clients of remote stores return: a range of bytes, and the version of its file.

A client has ``read(url, offset, nbytes)``, which makes one or two requests and never tries again;
all threads share it.
"""

from __future__ import annotations

from typing import NamedTuple

MIB = 1 << 20  # bytes


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
