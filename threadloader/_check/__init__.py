"""Is a dataset safe in threads: what workers share, what samples change, and what comes of it."""
