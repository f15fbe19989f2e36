"""Embeddings: the hidden states of a text, pooled into one vector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from ingot.errors import UsageError
from ingot.runtime.arrays import Float32

Pooling = Literal["last", "mean"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingOutput:
    """A vector, as long as the hidden states of the model."""

    embedding: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingRequestOutput:
    """A text and its vector, under vLLM's names."""

    request_id: str
    outputs: EmbeddingOutput
    prompt_token_ids: list[int]
    finished: bool = True


def check_pooling(pooling: object) -> None:
    """Raises UsageError for a way to pool that does not exist."""
    known = get_args(Pooling)
    if pooling not in known:
        raise UsageError(f"pooling is {pooling!r:.80}", hint=f"Supported: {', '.join(known)}.")


class PooledRows:
    """Takes the hidden states of one text, position after position.

    Their mean is summed in float64, a row at a time, so that its bits do not depend on how many
    rows come at once.
    """

    def __init__(self, pooling: Pooling, num_tokens: int) -> None:
        self._pooling, self._num_tokens = pooling, num_tokens
        self._sum: npt.NDArray[np.float64] | float = 0.0

    @property
    def first(self) -> int:
        """The first position whose hidden state is needed."""
        return self._num_tokens - 1 if self._pooling == "last" else 0

    def take(self, rows: Float32) -> None:
        """Takes the hidden states [N, C] of the next N positions."""
        for row in rows:
            self._sum = self._sum + row.astype(np.float64)

    def vector(self, *, normalize: bool) -> Float32:
        """The vector [C], of length 1 if it is to be; zeros stay zeros."""
        mean = np.asarray(self._sum / (self._num_tokens - self.first))
        length = float(np.sqrt(np.square(mean).sum())) if normalize else 1.0
        return (mean / (length or 1.0)).astype(np.float32)
