"""Sampler → planned batches → tickets: which samples come when; no threads, no data."""
