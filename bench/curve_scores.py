"""How far the logits of one model are from those of another, position by position.

Only numpy is needed: the environment of llama.cpp has nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray
AT_ONCE = 64  # positions: a large vocabulary takes 2 MB for each


class Scores:
    """Figures over texts. The first position of a text is not scored."""

    def __init__(self) -> None:
        self.kl: list[float] = []
        self.same: list[bool] = []
        self.lost: list[float] = []  # nats of the tokens that follow
        self.base_lost: list[float] = []

    def add(self, tokens: Sequence[int], base: Array, ours: Array) -> None:
        """Takes logits [T, V] of a text of T tokens."""
        if base.shape != ours.shape or len(base) != len(tokens):
            raise ValueError(f"logits {base.shape} and {ours.shape} of {len(tokens)} tokens")
        for start in range(1, len(tokens), AT_ONCE):
            rows = slice(start, start + AT_ONCE)
            p, q = log_probabilities(base[rows]), log_probabilities(ours[rows])
            self.kl += np.sum(np.exp(p) * (p - q), -1).tolist()
            self.same += (p.argmax(-1) == q.argmax(-1)).tolist()
            following = np.array(tokens[start + 1 : start + 1 + AT_ONCE], np.int64)
            places = np.arange(len(following)), following
            self.base_lost += (-p[places]).tolist()
            self.lost += (-q[places]).tolist()

    def figures(self) -> dict[str, Any]:
        """Mean KL in nats and its standard error, the share of equal top tokens, perplexities."""
        count = len(self.kl)
        return {
            "positions": count,
            "kl": rounded(np.mean(self.kl)),
            "kl_error": rounded(np.std(self.kl) / math.sqrt(count)),
            "same_top": rounded(np.mean(self.same)),
            "perplexity": rounded(math.exp(np.mean(self.lost))),
            "base_perplexity": rounded(math.exp(np.mean(self.base_lost))),
        }


def log_probabilities(logits: Array) -> Array:
    """Log-probabilities in float64."""
    wide = logits.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(-1, keepdims=True))
    return wide


def rounded(value: Any) -> float:
    """Four digits."""
    return float(f"{float(value):.4g}")
