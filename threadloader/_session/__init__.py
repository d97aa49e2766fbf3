"""One loader between its epochs: settings, kept workers, state, how the next epoch begins."""
