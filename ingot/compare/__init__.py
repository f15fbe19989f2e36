"""Comparing models: whatever gives logits of tokens is a side, and two sides are held together."""
