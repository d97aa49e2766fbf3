"""The answer to a request for a range: the bytes that were asked for, a redirect, or an error.

Nothing is taken on trust.  A server may ignore the range and send the whole file, send another
range or only a part, break off in the middle, or send a byte now and then.
"""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime
from io import BytesIO
from time import time
from typing import TYPE_CHECKING

from threadloader.datasets._remote.client import MIB, FetchedRange, TransferError, Version

if TYPE_CHECKING:
    from threadloader.datasets._remote.http_connection import Answer

__all__ = ["read_range"]

WHOLE, PARTIAL, BEYOND = 200, 206, 416
REDIRECTS = frozenset({301, 302, 303, 307, 308})
AT_ONCE = MIB // 4  # bytes that are skipped at a time
_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+)")


def read_range(answer: Answer, offset: int, nbytes: int) -> FetchedRange | str:
    """Read a range out of an answer.

    Args:
        answer: To ``Range: bytes=<offset>-<offset + nbytes - 1>``.
        offset: In bytes.
        nbytes: At least 1.

    Returns:
        The range; or the ``Location`` of a redirect.

    Raises:
        TransferError: It is neither; with a status if asking again can't help.
        TimeoutError: The answer takes too long.
    """
    status = answer.status
    if status in REDIRECTS and (location := answer.headers.get("location")):
        return location
    encoding = answer.headers.get("content-encoding", "identity")
    if status in {WHOLE, PARTIAL} and encoding != "identity":
        msg = "the server compresses the file, so that no ranges of it can be read"
        raise TransferError(msg, status)
    if status == PARTIAL:
        return _partial(answer, offset, nbytes)
    if status == WHOLE:
        return _whole(answer, offset, nbytes)
    found = _RANGE.fullmatch(_told(answer))
    if status == BEYOND and found is not None and int(found[3]) <= offset:
        return FetchedRange(b"", Version(int(found[3]), ""))  # an ETag would not be the file's
    msg = f"HTTP status {status} {answer.reason}".rstrip()
    raise TransferError(msg, status, _retry_after(answer.headers.get("retry-after")))


def _partial(answer: Answer, offset: int, nbytes: int) -> FetchedRange:
    """Return the range, if it is the one that was asked for."""
    told = _told(answer)
    found = _RANGE.fullmatch(told)
    if found is None or found[1] is None:
        msg = f"a range without telling where in the file it is: Content-Range {told!r}"
        raise TransferError(msg, PARTIAL)
    first, last, size = map(int, found.groups())
    count = min(nbytes, size - offset)  # below 1 where the file is said to end before
    right = count > 0 and (first, last) == (offset, offset + count - 1)
    if not right or answer.length not in {count, None}:
        msg = f"{answer.length} bytes of {told!r} for {nbytes} bytes from {offset}"
        raise TransferError(msg)
    answer.allow(count)
    data = _read(answer, count)
    return FetchedRange(data, Version(size, _tag(answer)))


def _whole(answer: Answer, offset: int, nbytes: int) -> FetchedRange:
    """Return the range out of a whole file, which some servers send instead."""
    size = answer.length
    if size is None:
        msg = "the server ignores the range and does not tell the size of the file"
        raise TransferError(msg, WHOLE)
    skipped = min(offset, size)
    count = min(nbytes, size - skipped)
    answer.allow(skipped + count)
    while skipped:
        skipped -= len(_read(answer, min(skipped, AT_ONCE)))
    data = _read(answer, count)
    return FetchedRange(data, Version(size, _tag(answer)), ranged=count == size)


def _told(answer: Answer) -> str:
    """Return the server's description of the range."""
    return answer.headers.get("content-range", "")


def _read(answer: Answer, nbytes: int) -> bytes:
    """Return the next ``nbytes`` bytes.

    Raises:
        TransferError: There are fewer.
        TimeoutError: The answer takes too long.
    """
    if nbytes <= 0:
        return b""
    # The socket writes into memory of the whole size, which is returned itself.  For 4 MiB, joining
    # pieces took 1.5 times the CPU, and a buffer that grows up to 2.5 times.
    whole = BytesIO()
    whole.seek(nbytes - 1)
    whole.write(b"\0")
    with whole.getbuffer() as view:
        at = answer.read_into(view)
        count = at
        while at < nbytes and count:
            with view[at:] as rest:
                count = answer.read_into(rest)
            at += count
    if at < nbytes:
        msg = f"the answer breaks off {nbytes - at:,} bytes early"
        raise TransferError(msg)
    return whole.getvalue()


def _tag(answer: Answer) -> str:
    """Return the tag of the file's version: a strong ETag, else the date, else a weak ETag."""
    etag, changed = answer.headers.get("etag", ""), answer.headers.get("last-modified", "")
    return changed or etag if etag.startswith("W/") or not etag else etag


def _retry_after(value: str | None) -> float | None:
    """Return the seconds of a ``Retry-After``, which has a number or a date."""
    if value is None:
        return None
    if value.isdecimal():
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time())
    except (TypeError, ValueError):
        return None
