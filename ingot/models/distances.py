"""Biases of scores by the distance of two tokens, as a config holds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ingot.errors import ContradictionError

Spacing = Literal["t5", "deberta", "even"]
Term = Literal["heads", "queries", "keys"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DistanceConfig:
    """What is added to scores by how far a query stands behind a key.

    Attributes:
        spacing: how distances share buckets: near ones have buckets of their own, and far ones
            share those whose size grows with them, as T5 or as DeBERTa rounds; or each has one.
        buckets: how many there are.
        farthest: all distances from there on have the same bucket.
        terms: what has a number for each bucket: a head, a query or a key.
        normed, shares: numbers of queries and keys are products with embeddings of buckets. Those
            are normalised, and they share the matrices of keys and queries.
    """

    spacing: Spacing
    buckets: int
    farthest: int
    terms: tuple[Term, ...]
    normed: bool = False
    shares: bool = False

    def check(self) -> None:
        """Raises ContradictionError for distances that do not fit the buckets."""
        least = {"t5": self.buckets // 4, "deberta": self.buckets // 4, "even": 0}[self.spacing]
        if self.buckets < 8 or self.buckets % 4 or self.farthest <= least + 1:
            raise ContradictionError(
                f"distances up to {self.farthest} are to have {self.buckets} buckets",
                hint="supported: a multiple of 4 buckets, from 8 on, and distances beyond a "
                "quarter of them",
            )
