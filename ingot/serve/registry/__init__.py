"""Registry of models: those that there are, and those that are loaded."""
