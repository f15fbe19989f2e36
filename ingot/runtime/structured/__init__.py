"""Texts of a form that a request asks for: JSON of a schema, a choice, a regex, a grammar."""
