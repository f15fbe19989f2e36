"""Attention over keys and values of heads, as a config holds it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from ingot.errors import ContradictionError
from ingot.models.distances import DistanceConfig
from ingot.models.rope import RopeConfig

# One norm for all heads, one for each head, or one over the whole width of queries or of keys.
QkNorm = Literal["none", "head", "each_head", "full"]
# What the results of heads are multiplied by before the output: nothing, or for each element or
# each head the sigmoid of a product with the input.
OutputGate = Literal["none", "element", "head"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig:
    """Full, grouped or multi-query attention.

    Attributes:
        causal: a query sees the keys before it alone, and its own.
        num_heads, num_kv_heads: query heads, and the key and value heads that they share.
        head_dim: size of one head, any multiple of 4, independent of the model's width.
        window: how many tokens back a query sees, itself included, and as many ahead where it is
            not causal; 0 is all.
        scale: what scores are multiplied by.
        softcap: bound of scores; 0 is none.
        sinks: every query head has a learned logit that takes part in its softmax, without a value.
        rope: how queries and keys are rotated; NO_ROPE for not at all.
        distances: what is added to scores by distance, where it is not causal.
        query_temperature: queries grow with their position; see `RopeConfig.temperature`.
        qk_norm: how queries and keys are normalised. The norm is of the model's kind.
        v_norm: values are divided by their root mean square, head by head.
        norm_after_rope: they are rotated first.
        gate: what the results of heads are multiplied by.
        bias, o_bias: biases of q, k, v and the gate, and of the output.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    causal: bool = True
    window: int = 0
    scale: float
    softcap: float = 0.0
    sinks: bool = False
    rope: RopeConfig
    distances: DistanceConfig | None = None
    query_temperature: float = 0.0
    qk_norm: QkNorm = "none"
    v_norm: bool = False
    norm_after_rope: bool = False
    gate: OutputGate = "none"
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
        if self.query_temperature and not self.rope.rotates:
            raise ContradictionError(
                "queries that are not rotated have a temperature",
                hint="supported: a temperature of queries that are rotated",
            )
        if self.norm_after_rope and self.qk_norm == "full":
            raise ContradictionError(
                "queries and keys are normalised over their whole width after the rotation",
                hint="supported: norms of heads after the rotation, or of the whole width before",
            )
        if self.distances and self.causal:
            raise ContradictionError(
                "causal attention has biases by distance",
                hint="supported: of models that read whole texts",
            )
        if self.distances:
            self.distances.check()
        self.rope.check(self.head_dim)

    @property
    def query_rope(self) -> RopeConfig:
        """Rotation of queries, with their factor where they have a temperature."""
        return replace(self.rope, temperature=self.query_temperature)

    @property
    def q_size(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def gate_size(self) -> int:
        """Width of the gate."""
        return {"none": 0, "element": self.q_size, "head": self.num_heads}[self.gate]

    @property
    def kv_size(self) -> int:
        """Width of all key heads, or of all value heads, together."""
        return self.num_kv_heads * self.head_dim

    # What a model asks of every kind of mixer.

    @property
    def ropes(self) -> tuple[RopeConfig, ...]:
        """The tables of rotations that it reads."""
        return (self.rope, self.query_rope) if self.rope.rotates else ()

    @property
    def cached(self) -> tuple[tuple[int, int], ...]:
        """The heads, and their size, of each thing that is cached of a token: keys and values."""
        return (self.num_kv_heads, self.head_dim), (self.num_kv_heads, self.head_dim)

    @property
    def records(self) -> tuple[tuple[int, int], ...]:
        """What is kept of a sequence as a whole; nothing."""
        return ()

    @property
    def block_size(self) -> int:
        """Columns of what is cached that share a scale in int8: a head."""
        return self.head_dim

    @property
    def temporary_width(self) -> int:
        """About how many values it makes of a token."""
        by, heads = self.distances, {"queries": self.num_heads, "keys": self.num_kv_heads}
        biases = by.buckets * sum(heads.get(term, 0) for term in by.terms) if by else 0
        gate = self.q_size + self.gate_size if self.gate_size else 0
        return 3 * self.q_size + 4 * self.kv_size + gate + biases

    @property
    def described(self) -> str:
        """Description in a few words."""
        return (
            f"{self.num_heads} query heads over {self.num_kv_heads} key-value heads of "
            f"{self.head_dim}"
        )

    @property
    def biased(self) -> tuple[str, ...]:
        """Its linears that have a bias."""
        projections = "q, k, v" if self.gate == "none" else "q, k, v, gate"
        named = {projections: self.bias, "attention output": self.o_bias}
        return tuple(name for name, has_bias in named.items() if has_bias)
