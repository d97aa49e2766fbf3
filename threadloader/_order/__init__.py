"""Which samples: sampler → planned batches → tickets, whose share, and how far; no threads."""
