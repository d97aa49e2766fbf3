"""What a dataset returned, kept in a folder."""
