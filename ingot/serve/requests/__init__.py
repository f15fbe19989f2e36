"""What the fronts share: from a request that was read to what its steps give."""
