"""A place in a pass over the data, saved so that a later pass can go on from there."""
