"""The version of the package; artifacts record it."""

__version__ = "0.1.0"
