"""What runs when: a trace in a file; nothing unless asked for."""
