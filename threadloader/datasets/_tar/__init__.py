"""Tar archives: from a file's bytes to its members, and to samples that are not decoded yet."""
