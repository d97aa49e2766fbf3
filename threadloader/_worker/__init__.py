"""One worker: its copies, generators, random streams and number; and index → sample."""
