"""Threads: how they start, wait and stop, and how many there are; they know no data."""
