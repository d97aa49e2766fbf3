"""Rows of Parquet files, by their row groups."""
