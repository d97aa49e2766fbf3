"""Files behind URLs: all threads read ranges of them, with retries and a cache on disk."""
