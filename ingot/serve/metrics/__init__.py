"""Metrics of a server and its models, and their text."""
