"""Shards as datasets: any sample by its number, or a stream that replicas share and resume."""
