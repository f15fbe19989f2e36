"""Rotary position embedding as a config holds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ingot.errors import ContradictionError

Pairs = Literal["halves", "neighbours"]
RopeType = Literal[
    "none", "default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding with every default resolved.

    Attributes:
        type: how the frequencies are stretched beyond the trained length; "none" rotates nothing.
        theta: base of the geometric series of frequencies.
        rotary_dim: how many leading dimensions of a head are rotated; the rest pass through.
        pairs: dimension i turns with i + rotary_dim / 2, or 2i with 2i + 1.
        factor: stretch of the context (linear, dynamic, llama3, yarn, proportional).
        original_max_position_embeddings: trained length that the stretch starts from.
        attention_factor: what cos and sin are multiplied by (yarn, longrope).
        low_freq_factor, high_freq_factor: band that llama3 blends over.
        beta_fast, beta_slow, truncate: band that yarn blends over, rounded outwards or not.
        turning: how many pairs turn at all, the first of those of the rotated dimensions
            (proportional).
        short_factor, long_factor: divisors per frequency (longrope), rotary_dim / 2 of each.
        temperature: what is turned is multiplied by 1 + temperature * ln(1 + floor(position /
            original_max_position_embeddings)); 0 for not at all. Of Llama 4.
    """

    type: RopeType = "default"
    theta: float = 10000.0
    rotary_dim: int
    pairs: Pairs = "halves"
    factor: float = 1.0
    original_max_position_embeddings: int
    attention_factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    turning: int = 0
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()
    temperature: float = 0.0

    @property
    def rotates(self) -> bool:
        """True if queries and keys are rotated at all."""
        return self.type != "none"

    def check(self, head_dim: int) -> None:
        """Raises ContradictionError where heads of that size cannot be rotated so."""
        dim = self.rotary_dim
        if not self.rotates:
            return
        if not 2 <= dim <= head_dim or dim % 2:
            raise ContradictionError(
                f"partial_rotary_factor rotates {dim} of head_dim {head_dim} dimensions",
                hint="supported: an even number from 2 to head_dim",
            )
        if self.type == "dynamic" and dim == 2:
            raise ContradictionError(
                "rope type dynamic needs more than 2 rotated dimensions",
                hint="use another rope type or a larger head_dim",
            )
        for name in ("short_factor", "long_factor"):
            factors = getattr(self, name)
            if self.type == "longrope" and len(factors) != dim // 2:
                raise ContradictionError(
                    f"{name} has {len(factors)} values",
                    hint=f"longrope needs one per frequency: {dim // 2}, half of the "
                    f"{dim} rotated dimensions",
                )


NO_ROPE = RopeConfig(type="none", rotary_dim=0, original_max_position_embeddings=0)
