"""Random numbers that depend on the seed and the sample, not on the thread."""
