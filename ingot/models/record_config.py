"""What all mixers have in common that keep one record of a sequence, as configs hold them."""

from __future__ import annotations

from ingot.models.rope import RopeConfig


class KeepsRecord:
    """A mixer whose tokens meet in a record of their sequence: nothing is cached of a token."""

    __slots__ = ()

    @property
    def window(self) -> int:
        """It forgets nothing at a fixed distance."""
        return 0

    @property
    def ropes(self) -> tuple[RopeConfig, ...]:
        """The tables of rotations that it reads: none."""
        return ()

    @property
    def cached(self) -> tuple[tuple[int, int], ...]:
        """What is cached of a token: nothing."""
        return ()

    @property
    def block_size(self) -> int:
        """Columns of what is cached that share a scale in int8: none are."""
        return 1
