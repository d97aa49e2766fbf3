"""Packing of sequences into rows of one length."""
