"""The gated delta rule, as a config holds it: each head keeps one matrix of a sequence.

"Gated Delta Networks", arXiv 2412.06464.
"""

from __future__ import annotations

from dataclasses import dataclass

from ingot.errors import ContradictionError
from ingot.models.record_config import KeepsRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaConfig(KeepsRecord):
    """A mixer whose heads correct what they hold of a key, at a rate, while all of it decays.

    Attributes:
        key_heads, value_heads: heads of queries and keys, and of values; value head j has the query
            and the key of head j // (value_heads / key_heads).
        key_dim, value_dim: size of a key and of a value.
        taps: how many rows a causal convolution sums up, over queries, keys and values side by
            side; the last is a token's own. Its activation is silu.
        l2_eps: added to the squared length of a query or key before it is divided by its length.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int
    l2_eps: float = 1e-6

    def check(self) -> None:
        """Raises ContradictionError for heads that cannot share keys."""
        if self.value_heads % self.key_heads:
            raise ContradictionError(
                f"linear_num_value_heads {self.value_heads} is not a multiple of "
                f"linear_num_key_heads {self.key_heads}",
                hint="every key head must serve the same number of value heads",
            )
        if self.taps < 2:
            raise ContradictionError(
                f"linear_conv_kernel_dim is {self.taps}", hint="supported: 2 and more"
            )

    @property
    def k_size(self) -> int:
        """Width of all keys of a token, or of all queries, together."""
        return self.key_heads * self.key_dim

    @property
    def v_size(self) -> int:
        """Width of all values of a token together."""
        return self.value_heads * self.value_dim

    @property
    def qkv_size(self) -> int:
        """Width of queries, keys and values side by side."""
        return 2 * self.k_size + self.v_size

    # What a model asks of every kind of mixer; see also `KeepsRecord`.

    @property
    def records(self) -> tuple[tuple[int, int], ...]:
        """The shape of each thing that is kept of a sequence, in float32."""
        return (self.taps - 1, self.qkv_size), (self.value_heads * self.key_dim, self.value_dim)

    @property
    def temporary_width(self) -> int:
        """About how many values it makes of a token."""
        return 2 * self.qkv_size + 2 * self.k_size + 4 * self.v_size + 5 * self.value_heads

    @property
    def described(self) -> str:
        """Description in a few words."""
        return (
            f"gated delta rule in {self.value_heads} heads of {self.key_dim} x {self.value_dim} "
            f"over {self.key_heads} key heads"
        )

    @property
    def biased(self) -> tuple[str, ...]:
        """Its linears that have a bias, of which none is an option."""
        return ()
