"""The blocks that models are composed of."""
