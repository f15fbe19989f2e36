"""Mamba, as a config holds it.

Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", arXiv 2312.00752.
"""

from __future__ import annotations

from dataclasses import dataclass

from ingot.models.record_config import KeepsRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaConfig(KeepsRecord):
    """A state-space mixer whose channels have a small vector each.

    Attributes:
        width: channels; state: size of the vector of each.
        rank: width of the vector that time steps are linear in.
        taps: rows that the convolution before it adds up, its own included.
        norms: that vector, and those that a token writes and reads, are normalised without weights.
        norm_eps: epsilon of these norms.
        conv_bias: bias of the convolution; bias: of the product with the input and of the output.
    """

    width: int
    state: int
    rank: int
    taps: int
    norms: bool = False
    norm_eps: float = 0.0
    conv_bias: bool = True
    bias: bool = False

    # What a model asks of every kind of mixer; see also `KeepsRecord`.

    def check(self) -> None:
        """Raises ContradictionError for values that cannot be together; here all can."""

    @property
    def records(self) -> tuple[tuple[int, int], ...]:
        """Rows and columns of what is kept of a sequence as a whole."""
        return ((self.state, self.width), (self.taps - 1, self.width))

    @property
    def temporary_width(self) -> int:
        """About how many values it makes of a token."""
        return 6 * self.width + self.rank + 2 * self.state

    @property
    def described(self) -> str:
        """Description in a few words."""
        return f"Mamba of {self.width} channels and states of {self.state}"

    @property
    def biased(self) -> tuple[str, ...]:
        """Its linears that have a bias."""
        return ("Mamba",) if self.bias else ()
