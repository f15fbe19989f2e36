"""Mamba-2, as a config holds it.

Dao and Gu, "Transformers are SSMs", arXiv 2405.21060.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ingot.errors import ContradictionError
from ingot.models.record_config import KeepsRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2Config(KeepsRecord):
    """A state-space mixer whose heads have a matrix each, which decays by one number a token.

    Attributes:
        heads, head_dim: those of values and of the output.
        groups: of neighbouring heads that share keys and queries (B and C), and whose output is
            gated and then normalised by itself.
        state: size of a key, and of a query.
        taps: rows that the convolution before it adds up, its own included.
        norm_eps: epsilon of that norm.
        conv_bias: bias of the convolution; bias: of the products with the input and of the output.
        shortest, longest: bounds of time steps, which scale decays and values.
    """

    heads: int
    head_dim: int
    groups: int
    state: int
    taps: int
    norm_eps: float
    conv_bias: bool = True
    bias: bool = False
    shortest: float = 0.0
    longest: float = math.inf

    def check(self) -> None:
        """Raises ContradictionError for groups that do not divide the heads."""
        if self.heads % self.groups:
            raise ContradictionError(
                f"{self.heads} heads of Mamba-2 are not a multiple of {self.groups} groups",
                hint="every group must serve the same number of heads",
            )

    @property
    def width(self) -> int:
        """Width of all heads together."""
        return self.heads * self.head_dim

    @property
    def key_width(self) -> int:
        """Width of the keys of all groups together, and of their queries."""
        return self.groups * self.state

    @property
    def conv_width(self) -> int:
        """Columns of the convolution: values, keys and queries."""
        return self.width + 2 * self.key_width

    @property
    def clamps(self) -> bool:
        """Whether its time steps have bounds that any can pass: all are above 0."""
        return self.shortest > 0.0 or self.longest < math.inf

    # What a model asks of every kind of mixer; see also `KeepsRecord`.

    @property
    def records(self) -> tuple[tuple[int, int], ...]:
        """Rows and columns of what is kept of a sequence as a whole."""
        return ((self.heads * self.state, self.head_dim), (self.taps - 1, self.conv_width))

    @property
    def temporary_width(self) -> int:
        """About how many values it makes of a token."""
        return 3 * self.width + 2 * self.conv_width + 3 * self.heads

    @property
    def described(self) -> str:
        """Description in a few words."""
        return f"Mamba-2 with {self.heads} heads of {self.head_dim} and states of {self.state}"

    @property
    def biased(self) -> tuple[str, ...]:
        """Its linears that have a bias."""
        return ("Mamba-2",) if self.bias else ()
