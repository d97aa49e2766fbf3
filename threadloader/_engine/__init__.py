"""One epoch: its plan, its threads, its batches, and how they are delivered."""
