"""Threads: how they start, wait and stop, and who they are; they know no data."""
