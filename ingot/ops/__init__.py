"""The op vocabulary."""
