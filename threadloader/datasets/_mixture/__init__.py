"""Several datasets as one: how often each has its turn, and when they end."""
