"""Threads, which know no data: how they start, wait, stop, and who they are."""
