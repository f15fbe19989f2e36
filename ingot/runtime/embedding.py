"""Embeddings: the hidden states of a text, pooled into one vector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

from ingot.artifact.pooler import Pooler
from ingot.artifact.programs import HIDDEN
from ingot.errors import UsageError
from ingot.runtime.arrays import Float32
from ingot.runtime.encoder import EncodedText, Stopped, never

Pooling = Literal["last", "mean", "first"]


class RunsTexts(Protocol):
    """What gives a row for each text, float32 [texts, columns]."""

    longest: int

    def run(self, texts: Sequence[EncodedText], stopped: Stopped = never) -> Float32: ...


class RunsPools(Protocol):
    """A model that generates, as far as `PagedTexts` calls it."""

    max_model_len: int

    def run_pools(self, program: str, tokens: list[list[int]], pools: list[Any]) -> None: ...


class PagedTexts:
    """Rows of texts by a model that generates, which keeps and shares what they begin with."""

    def __init__(self, model: RunsPools, pooler: Pooler) -> None:
        self._model, self._pooling = model, pooler.pooling
        self.longest = model.max_model_len

    def run(self, texts: Sequence[EncodedText], stopped: Stopped = never) -> Float32:
        tokens = [[*text.tokens] for text in texts]
        pools = [PooledRows(self._pooling, len(ids)) for ids in tokens]
        self._model.run_pools(HIDDEN.name, tokens, pools)
        return np.stack([pool.vector(normalize=False) for pool in pools])


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

    def __init__(self, pooling: str, num_tokens: int) -> None:
        self._pooling, self._num_tokens = pooling, num_tokens
        self._seen = 0
        self._sum: npt.NDArray[np.float64] | float = 0.0

    @property
    def first(self) -> int:
        """The first position whose hidden state is needed."""
        return self._num_tokens - 1 if self._pooling == "last" else 0

    def take(self, rows: Float32) -> None:
        """Takes the hidden states [N, C] of the next N positions."""
        for row in rows:
            if self._pooling != "first" or not self._seen:
                self._sum = self._sum + row.astype(np.float64)
            self._seen += 1

    def vector(self, *, normalize: bool) -> Float32:
        """The vector [C], of length 1 if it is to be; zeros stay zeros."""
        count = self._num_tokens if self._pooling == "mean" else 1
        mean = np.asarray(self._sum / count)
        length = float(np.sqrt(np.square(mean).sum())) if normalize else 1.0
        return (mean / (length or 1.0)).astype(np.float32)
