"""Frameworks that need more than a `DataLoader` subclass, one module each.

Importing a module here imports its framework; nothing else of threadloader does.
"""
