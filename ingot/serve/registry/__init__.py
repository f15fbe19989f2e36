"""Which models there are, and which of them are loaded."""
