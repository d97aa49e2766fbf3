"""Processes that train together: what each loads, and what they agree on."""
