"""How weights are stored in integers."""

from __future__ import annotations

from dataclasses import dataclass

BLOCKS = (128, 64)  # columns that share a float16 scale in int4, where they divide a row


@dataclass(frozen=True, slots=True)
class Storage:
    """Integers of so many bits, with a scale for every `group` columns; 0: for every row."""

    bits: int
    group: int

    @property
    def label(self) -> str:
        """`int4-g32`, `int8-channel`."""
        return f"int{self.bits}-" + (f"g{self.group}" if self.group else "channel")

    def of(self, columns: int) -> Spans:
        """What shares what in a row of so many columns."""
        group = self.group or columns
        blocks = (block for block in BLOCKS if block > group and columns % block == 0)
        return Spans(group, next(blocks, group) if self.bits == 4 else group)


@dataclass(frozen=True, slots=True)
class Spans:
    """Columns that share a multiplier, and columns that share a float16 scale.

    Where the two are the same there are no multipliers.
    """

    group: int
    block: int

    @property
    def has_multipliers(self) -> bool:
        return self.group < self.block
