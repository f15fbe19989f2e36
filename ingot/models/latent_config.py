"""Latent attention, as a config holds it: keys and values of all heads from one row a token.

DeepSeek-V2, arXiv 2405.04434, section 2.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ingot.errors import ContradictionError
from ingot.models.rope import RopeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentConfig:
    """Multi-head latent attention.

    A token is cached as one row, which all heads share: a normed vector of `rank` values that keys
    and values are linear in, and a rotated part of keys.

    Attributes:
        num_heads: query heads.
        q_rank: width of the normed vector that queries are linear in; 0: they are in the input.
        rank: width of the normed vector of keys and values.
        plain_dim, rotated_dim: the two parts of a query and of a key.
        value_dim: size of a head's value.
        scale: what scores are multiplied by.
        rope: how the rotated parts are turned.
        norm_eps: epsilon of the norms of both vectors.
        bias: of the products with the input and of the output, but not of queries without a rank.
    """

    num_heads: int
    q_rank: int = 0
    rank: int
    plain_dim: int
    rotated_dim: int
    value_dim: int
    scale: float
    rope: RopeConfig
    norm_eps: float = 1e-6
    bias: bool = False

    def check(self) -> None:
        """Raises ContradictionError for values that contradict each other or that nothing runs."""
        if self.row_size % 4:
            raise ContradictionError(
                f"kv_lora_rank {self.rank} and qk_rope_head_dim {self.rotated_dim} make rows of "
                f"{self.row_size} values",
                hint="supported: rows of any multiple of 4",
            )
        if self.rotated_dim % 2:
            raise ContradictionError(
                f"qk_rope_head_dim is {self.rotated_dim}", hint="supported: any even number"
            )
        self.rope.check(self.rotated_dim)

    @property
    def row_size(self) -> int:
        """Values that a token is cached as."""
        return self.rank + self.rotated_dim

    @property
    def o_size(self) -> int:
        """Width of the values of all heads together."""
        return self.num_heads * self.value_dim

    # What a model asks of every kind of mixer.

    @property
    def window(self) -> int:
        """Window of a query in tokens; 0: it sees all."""
        return 0

    @property
    def ropes(self) -> tuple[RopeConfig, ...]:
        """Rotations."""
        return (self.rope,) if self.rope.rotates else ()

    @property
    def cached(self) -> tuple[tuple[int, int], ...]:
        """The heads, and their size, of each thing that is cached of a token: one row."""
        return ((1, self.row_size),)

    @property
    def records(self) -> tuple[tuple[int, int], ...]:
        """What is kept of a sequence as a whole; nothing."""
        return ()

    @property
    def block_size(self) -> int:
        """Columns of what is cached that share a scale in int8: both parts are whole blocks."""
        return math.gcd(self.rank, self.rotated_dim)

    @property
    def temporary_width(self) -> int:
        """About how many values it makes of a token."""
        queries = self.plain_dim + 2 * self.rotated_dim + 2 * self.row_size + self.rank
        return self.num_heads * queries + 2 * self.q_rank + 4 * self.row_size + self.o_size

    @property
    def described(self) -> str:
        """Description in a few words."""
        return (
            f"{self.num_heads} query heads over one latent row of {self.rank} + "
            f"{self.rotated_dim} values"
        )

    @property
    def biased(self) -> tuple[str, ...]:
        """Its linears that have a bias."""
        return ("latent attention",) if self.bias else ()
