"""The jobs of worker threads and of the copier: tickets, reading, progress, errors."""
