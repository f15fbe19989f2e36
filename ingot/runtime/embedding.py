"""Embeddings: the hidden states of a text, pooled into one vector."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

from ingot.artifact.pooler import Pooler
from ingot.artifact.programs import HIDDEN
from ingot.errors import UsageError
from ingot.runtime.arrays import Float32
from ingot.runtime.encoder import EncodedText, Stopped, never

Wide = npt.NDArray[np.float64]
Pooling = Literal["first", "max", "mean", "mean_sqrt", "weighted_mean", "sum", "last"]


class RunsTexts(Protocol):
    """What gives a row for each text, float32 [texts, columns]."""

    longest: int

    def run(self, texts: Sequence[EncodedText], stopped: Stopped = never) -> Float32: ...

    def run_tokens(
        self, texts: Sequence[EncodedText], stopped: Stopped = never
    ) -> list[Float32]: ...


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
        pools = [PooledRows(self._pooling, len(text.tokens), text.unpooled) for text in texts]
        self._model.run_pools(HIDDEN.name, tokens, pools)
        return np.stack([pool.vector(normalize=False) for pool in pools])

    def run_tokens(self, texts: Sequence[EncodedText], stopped: Stopped = never) -> list[Float32]:
        tokens = [[*text.tokens] for text in texts]
        kept = [KeptRows() for _ in texts]
        self._model.run_pools(HIDDEN.name, tokens, kept)
        return [np.concatenate(each.rows) for each in kept]


class KeptRows:
    """Takes the hidden states of one text, position after position, and keeps them."""

    first = 0  # the first position whose hidden state is needed

    def __init__(self) -> None:
        self.rows: list[Float32] = []

    def take(self, rows: Float32) -> None:
        """Takes the hidden states [N, C] of the next N positions."""
        self.rows.append(rows.copy())


def check_pooling(pooling: str) -> str:
    """A way to pool. Raises UsageError for one that does not exist."""
    known = get_args(Pooling)
    if pooling not in known:
        raise UsageError(f"pooling is {pooling!r:.80}", hint=f"Supported: {', '.join(known)}.")
    return pooling


# What is kept of rows: two at a time, where the second comes behind the first.
TAKES: Mapping[str, Callable[[Wide, Wide], Wide]] = {
    "first": lambda kept, row: kept,
    "max": np.maximum,
    "mean": np.add,
    "mean_sqrt": np.add,
    "weighted_mean": np.add,
    "sum": np.add,
    "last": lambda kept, row: row,
}
# What that is divided by at the end, where it is not 1: by the positions of the rows.
DIVISORS: Mapping[str, Callable[[range], float]] = {
    "mean": len,
    "mean_sqrt": lambda positions: math.sqrt(len(positions)),
    "weighted_mean": lambda positions: sum(positions) + len(positions),
}


class PooledRows:
    """Takes the hidden states of one text, position after position, and pools them.

    Sums are of float64, a row at a time, so that bits do not depend on how many rows come at once.

    Args:
        pooling: how, as `Pooler` says it.
        unpooled: so many positions at the beginning are left out.
    """

    def __init__(self, pooling: Sequence[str], num_tokens: int, unpooled: int = 0) -> None:
        self._pooling = pooling
        first = num_tokens - 1 if {*pooling} == {"last"} else unpooled
        self._positions = range(first, num_tokens)
        self._seen = 0
        self._kept: dict[str, Wide] = {}

    @property
    def first(self) -> int:
        """The first position whose hidden state is needed."""
        return self._positions.start

    def take(self, rows: Float32) -> None:
        """Takes the hidden states [N, C] of the next N positions."""
        for row in rows.astype(np.float64):
            position = self._positions[self._seen]
            for how in {*self._pooling}:
                taken = row * (position + 1) if how == "weighted_mean" else row
                kept = self._kept.get(how)
                self._kept[how] = taken if kept is None else TAKES[how](kept, taken)
            self._seen += 1

    def vector(self, *, normalize: bool) -> Float32:
        """The vector, of length 1 if it is to be; zeros stay zeros."""
        made = np.concatenate([self._made(how) for how in self._pooling])
        length = float(np.sqrt(np.square(made).sum())) if normalize else 1.0
        return (made / (length or 1.0)).astype(np.float32)

    def _made(self, how: str) -> Wide:
        divisor = DIVISORS[how](self._positions) if how in DIVISORS else 1
        return self._kept[how] / divisor
