"""A conversation with a model: on a terminal, or of piped lines."""
