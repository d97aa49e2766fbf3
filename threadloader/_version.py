"""The version, where all of the package can import it."""

__all__ = ["__version__"]

__version__ = "0.1.0"
