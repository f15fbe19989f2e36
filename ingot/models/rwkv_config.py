"""The mixer and the MLP of RWKV-7, as a config holds them.

"RWKV-7 Goose", arXiv 2503.14456. Each head keeps one matrix of a sequence, and both parts see the
token before their own.
"""

from __future__ import annotations

from dataclasses import dataclass

from ingot.errors import ContradictionError
from ingot.models.record_config import KeepsRecord

# What a token is mixed for, each time in another share with the token before it.
MIXED = ("r", "w", "k", "v", "a", "g")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeMixConfig(KeepsRecord):
    """A mixer whose heads decay by channel, and replace what they hold of a key at a rate.

    Attributes:
        num_heads, head_dim: heads of queries, keys and values alike.
        decay_rank, rate_rank, gate_rank: of the products of two low matrices that give decays,
            rates of replacement, and the gate of the output.
        value_rank: of that which gives the share of the first layer's values in these; 0 in the
            first layer.
        norm_eps: epsilon of the norm of each head's output.
    """

    num_heads: int
    head_dim: int
    decay_rank: int
    rate_rank: int
    value_rank: int
    gate_rank: int
    norm_eps: float

    @property
    def size(self) -> int:
        """Width of all heads together."""
        return self.num_heads * self.head_dim

    # What a model asks of every kind of mixer; see also `KeepsRecord`.

    def check(self) -> None:
        """Raises ContradictionError for heads that no kernel takes."""
        if self.head_dim % 4:
            raise ContradictionError(
                f"head_dim is {self.head_dim}", hint="supported: any positive multiple of 4"
            )

    @property
    def records(self) -> tuple[tuple[int, int], ...]:
        """The shape of each thing that is kept of a sequence, in float32."""
        return (1, self.size), (self.size, self.head_dim)

    @property
    def temporary_width(self) -> int:
        """About how many values it makes of a token."""
        return 24 * self.size

    @property
    def described(self) -> str:
        """Description in a few words."""
        return f"time mixing in {self.num_heads} heads of {self.head_dim} x {self.head_dim}"

    @property
    def biased(self) -> tuple[str, ...]:
        """Its linears that have a bias, of which none is an option."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelMixConfig:
    """value(relu(key(x))^2), where x is mixed with the token before it.

    Attributes:
        hidden_size: width of x.
        size: width between key and value.
    """

    hidden_size: int
    size: int

    # What a model asks of every kind of MLP.

    def check(self) -> None:
        """Raises ContradictionError for values that cannot be together; here all can."""

    @property
    def records(self) -> tuple[tuple[int, int], ...]:
        """The shape of each thing that is kept of a sequence, in float32."""
        return ((1, self.hidden_size),)

    @property
    def temporary_width(self) -> int:
        """About how many values it makes of a token."""
        return self.size + 2 * self.hidden_size

    @property
    def described(self) -> str:
        """Description in a few words."""
        return f"channel mixing of {self.size}"

    @property
    def biased(self) -> tuple[str, ...]:
        """Its linears that have a bias."""
        return ()
