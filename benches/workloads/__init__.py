"""What is loaded: one dataset a file, from microseconds to milliseconds a sample."""
