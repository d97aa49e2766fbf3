"""Samples → batch: their layout, memory that is reused, and collation."""
