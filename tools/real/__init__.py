"""Proves the product on real models: see `python -m tools.real --help`."""
