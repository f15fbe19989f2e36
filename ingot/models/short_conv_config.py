"""Short convolutions with two gates, as a config holds them.

Liquid AI, "LFM2 Technical Report", arXiv 2511.23404.
"""

from __future__ import annotations

from dataclasses import dataclass

from ingot.models.record_config import KeepsRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvConfig(KeepsRecord):
    """out(c * conv(b * x)), where b, c and x are products with the input.

    Attributes:
        width: that of the residual stream, and of b, c and x.
        taps: rows that the convolution adds up, its own included.
        bias: biases of all products and of the convolution.
    """

    width: int
    taps: int
    bias: bool = False

    # What a model asks of every kind of mixer; see also `KeepsRecord`.

    def check(self) -> None:
        """Raises ContradictionError for values that cannot be together; here all can."""

    @property
    def records(self) -> tuple[tuple[int, int], ...]:
        """Rows and columns of what is kept of a sequence as a whole."""
        return ((self.taps - 1, self.width),)

    @property
    def temporary_width(self) -> int:
        """About how many values it makes of a token."""
        return 5 * self.width

    @property
    def described(self) -> str:
        """Description in a few words."""
        return f"gated convolutions over {self.taps} rows"

    @property
    def biased(self) -> tuple[str, ...]:
        """Its linears that have a bias."""
        return ("convolutions",) if self.bias else ()
