"""Cells: tokens that a recurrence takes up together, on a grid that begins where a sequence does.

A record holds the matrices as they were where the cell of the next token begins, and behind them a
row for each token of that cell: what the tokens bring, as it is. So a cell can be computed again
and again from the same numbers, however steps cut it; and a record goes on from any of its tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

GRID = 16  # tokens of a cell
KEPT = ("k", "v", "decay", "beta", "a", "b")  # what a row brings, in this order


@dataclass(frozen=True)
class Cells:
    """The layout of a record.

    Attributes:
        shapes: of a token's row of each operand, by name: k [G, D], v [H, P], decay [H] or [H, D],
            beta [H], a and b [H, D]. Others are ignored.
        grid: tokens of a cell.
    """

    shapes: Mapping[str, Sequence[int]]
    grid: int

    @property
    def matrices(self) -> tuple[int, int]:
        """All matrices of a record, one below the other: H * D and P."""
        heads, width = self.shapes["v"]
        return heads * self.shapes["k"][1], width

    @cached_property
    def columns(self) -> Mapping[str, int]:
        """How many numbers a row has of each operand that there is."""
        return {name: math.prod(self.shapes[name]) for name in KEPT if name in self.shapes}

    @property
    def row(self) -> int:
        """How many numbers a row has."""
        return sum(self.columns.values())

    @cached_property
    def offsets(self) -> Mapping[str, int]:
        """The place in a row of each operand, also of one that there is not."""
        ends = accumulate((self.columns.get(name, 0) for name in KEPT), initial=0)
        return dict(zip(KEPT, ends, strict=False))

    @property
    def record(self) -> tuple[int, int]:
        """Shape of a record: the matrices, and rows for all tokens of a cell but the last, which
        completes it."""
        height, width = self.matrices
        return height + -(-(self.grid - 1) * self.row // width), width
