"""Lines of text files: JSON, or anything else."""
