"""The loader, its arguments, and its session: what lasts from epoch to epoch."""
