"""Core of the fronts: from a request that was read to the results of its steps."""
