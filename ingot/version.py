"""The version of the package, which artifacts record, and what pip calls it."""

__version__ = "0.1.0"
DISTRIBUTION = "ingot-lm"  # on the package index `ingot` is something else
