"""Sampler → planned batches → tickets; no threads, no data."""
