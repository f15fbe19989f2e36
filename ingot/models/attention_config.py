"""Attention over keys and values of heads, as a config holds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ingot.errors import ContradictionError
from ingot.models.rope import RopeConfig

QkNorm = Literal["none", "head"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig:
    """Full, grouped or multi-query attention.

    Attributes:
        num_heads, num_kv_heads: query heads, and the key and value heads that they share.
        head_dim: size of one head, any multiple of 4, independent of the model's width.
        window: how many tokens back a query sees, itself included; 0 is all.
        scale: what scores are multiplied by.
        softcap: bound of scores; 0 is none.
        sinks: every query head has a learned logit that takes part in its softmax, without a value.
        rope: how queries and keys are rotated; NO_ROPE for not at all.
        qk_norm: queries and keys are normalised per head before the rotation, or not at all.
        bias, o_bias: biases of q, k and v, and of the output.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int = 0
    scale: float
    softcap: float = 0.0
    sinks: bool = False
    rope: RopeConfig
    qk_norm: QkNorm = "none"
    bias: bool = False
    o_bias: bool = False

    def check(self) -> None:
        """Raises ContradictionError for values that contradict each other or that nothing runs."""
        if self.head_dim <= 0 or self.head_dim % 4:
            raise ContradictionError(
                f"head_dim is {self.head_dim}",
                hint="supported: any positive multiple of 4",
            )
        if self.num_heads % self.num_kv_heads:
            raise ContradictionError(
                f"num_attention_heads {self.num_heads} is not a multiple of "
                f"num_key_value_heads {self.num_kv_heads}",
                hint="every key-value head must serve the same number of query heads",
            )
        self.rope.check(self.head_dim)

    @property
    def q_size(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads, or of all value heads, together."""
        return self.num_kv_heads * self.head_dim

    # What a model asks of every kind of mixer.

    @property
    def ropes(self) -> tuple[RopeConfig, ...]:
        """The tables of rotations that it reads."""
        return (self.rope,) if self.rope.rotates else ()

    @property
    def cached(self) -> tuple[tuple[int, int], ...]:
        """The heads, and their size, of each thing that is cached of a token: keys and values."""
        return (self.num_kv_heads, self.head_dim), (self.num_kv_heads, self.head_dim)

    @property
    def product_widths(self) -> tuple[int, ...]:
        """Columns of its matrices that do not read the residual stream."""
        return (self.q_size,)

    @property
    def temporary_width(self) -> int:
        """About how many values it makes of a token."""
        return 3 * self.q_size + 4 * self.kv_size

    @property
    def described(self) -> str:
        """What it is, in a few words."""
        return (
            f"{self.num_heads} query heads over {self.num_kv_heads} key-value heads of "
            f"{self.head_dim}"
        )

    @property
    def biased(self) -> tuple[str, ...]:
        """Its linears that have a bias."""
        named = {"q, k, v": self.bias, "attention output": self.o_bias}
        return tuple(name for name, has_bias in named.items() if has_bias)
