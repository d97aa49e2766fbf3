"""One pass over the data, in the consumer's thread: plan ahead, wait, deliver."""
