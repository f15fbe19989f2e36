"""Models written once, as plain modules from a block library."""
