"""What the whole process has used: time on processors, and bytes read from storage."""

from __future__ import annotations

from time import process_time

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

__all__ = ["process_use"]

BLOCK_NBYTES = 512  # bytes of what the system counts as read from storage; see getrusage(2)


def process_use() -> tuple[float, int]:
    """Return the seconds of all threads on processors, and the bytes read past the page cache."""
    seconds, nbytes = 0.0, 0
    if resource is not None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        seconds, nbytes = used.ru_utime + used.ru_stime, BLOCK_NBYTES * used.ru_inblock
    return seconds or process_time(), nbytes
