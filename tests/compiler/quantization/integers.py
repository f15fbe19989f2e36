"""Formats of weights in integers, spelled shortly."""

from __future__ import annotations

from ingot.artifact.formats import Format


def integers(bits: int, group: int, block: int = 0) -> Format:
    """So many bits, a multiplier for each group and a float16 scale for each block of groups."""
    return Format("int8" if bits == 8 else "int4", block or group, group, "float16")
