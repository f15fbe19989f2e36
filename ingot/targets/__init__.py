"""Targets that code is built for: a room for each kind of machine."""
