"""The version, where all of the package can import it."""

__version__ = "0.1.0"
