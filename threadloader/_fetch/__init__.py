"""Index → sample: the user's dataset is called here, and its errors are caught."""
