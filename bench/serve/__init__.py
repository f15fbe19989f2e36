"""Measurements of `ingot serve` beside `LLM` in process and beside another server."""
