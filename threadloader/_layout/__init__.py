"""The structure, shapes and dtypes that all samples of a batch share."""
