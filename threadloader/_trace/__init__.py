"""What runs when: a trace in a file, ranges for profilers; nothing unless asked for."""
