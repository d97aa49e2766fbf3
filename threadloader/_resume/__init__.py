"""What is remembered of a pass over the data, so that another can go on from there."""
