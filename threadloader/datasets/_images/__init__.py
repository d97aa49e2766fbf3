"""Images: a folder of them as a dataset, and a file's bytes decoded to an array of RGB."""
