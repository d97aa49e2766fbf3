"""Datasets to load, from microseconds to milliseconds a sample."""
