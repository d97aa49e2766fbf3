"""Samples → batch: written into memory that is reused, or collated from a list."""
