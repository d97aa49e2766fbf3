"""Training scripts as people publish them, small; each prints a digest of what it trained on."""
