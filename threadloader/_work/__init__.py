"""What worker threads and the copier do: tickets, reading, progress, errors."""
