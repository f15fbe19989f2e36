"""Tiles that were measured on a card. `python -m bench.tune_cuda` writes this file.

Each line is a place, see `ingot.targets.cuda.tiles.TileKey`, and the tile of it: rows, outputs,
warps, stages. What has no line has its default. Nothing has been measured yet.
"""

from __future__ import annotations

from collections.abc import Mapping

# The card of each level, and with what it was measured.
MEASURED: Mapping[str, str] = {}
TUNED: Mapping[tuple[str, str, str, str, int], tuple[int, int, int, int]] = {}
