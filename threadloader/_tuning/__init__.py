"""How many threads make the batches: 0, 1, 2 or more, whichever brings them soonest."""
