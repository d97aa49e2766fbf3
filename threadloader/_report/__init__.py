"""Figures of a loader: what is counted and traced, rates, a verdict, metrics for a logger."""
