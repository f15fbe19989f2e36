"""Finds the tiles of products on a card: what is tried, built, timed and chosen."""
