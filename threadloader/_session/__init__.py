"""One loader between its epochs: settings, kept workers, state, how the next one begins."""
