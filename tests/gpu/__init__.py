"""Tests that need a real GPU."""
