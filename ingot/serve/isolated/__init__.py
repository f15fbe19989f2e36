"""Engines in processes of their own, so that what ends one leaves the others and the front."""
