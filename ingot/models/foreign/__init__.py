"""Modules that another library wrote: those of `transformers`."""
