"""Answers about whole texts, in the shapes of OpenAI, vLLM, Cohere and TEI."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from ingot.artifact.pooler import Pooler
from ingot.runtime.arrays import Float32
from ingot.runtime.scoring import SparseVector, by_rank
from ingot.runtime.scoring import as_base64 as in_base64
from ingot.runtime.unique import unique_id


class TextUsage(Struct, frozen=True):
    """Tokens of the texts."""

    prompt_tokens: int
    total_tokens: int


class Answer(Struct, frozen=True, kw_only=True):
    """What answers with a list begin with."""

    id: str
    object: str = "list"
    created: int
    model: str
    usage: TextUsage


class Embedding(Struct, frozen=True, kw_only=True):
    """A vector: numbers, or their little-endian float32 in base64."""

    object: str = "embedding"
    index: int
    embedding: list[float] | str


class Embeddings(Answer, frozen=True, kw_only=True):
    """The answer to `POST /v1/embeddings`."""

    data: list[Embedding]


class Label(Struct, frozen=True, kw_only=True):
    """The likeliest label of a text, and the probabilities of all."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class Labels(Answer, frozen=True, kw_only=True):
    """The answer to `POST /classify`."""

    data: list[Label]


class Pooled(Struct, frozen=True, kw_only=True):
    """What the model makes of a text, as it is, or of each of its tokens."""

    index: int
    object: str = "pooling"
    data: list[float | list[float]]


class Poolings(Answer, frozen=True, kw_only=True):
    """The answer to `POST /pooling`."""

    data: list[Pooled]


class Score(Struct, frozen=True, kw_only=True):
    """How well two texts go together."""

    index: int
    object: str = "score"
    score: float


class Scores(Answer, frozen=True, kw_only=True):
    """The answer to `POST /score`."""

    data: list[Score]


class Ranked(Struct, frozen=True, kw_only=True):
    """A document and how well it answers the query."""

    index: int
    relevance_score: float
    document: dict[str, Any] | UnsetType = UNSET


class Reranking(Struct, frozen=True, kw_only=True):
    """The answer to `POST /v1/rerank`, the best document first."""

    id: str
    model: str
    results: list[Ranked]
    usage: TextUsage


class TeiRanked(Struct, frozen=True, kw_only=True):
    """A document and its score, under TEI's names."""

    index: int
    score: float
    text: str | UnsetType = UNSET


class TeiLabel(Struct, frozen=True, kw_only=True):
    """A label and its score, under TEI's names."""

    score: float
    label: str


class SparseValue(Struct, frozen=True):
    """A number of a sparse vector and its place, under TEI's names."""

    index: int
    value: float


def sparse_values(vector: SparseVector) -> list[SparseValue]:
    """The numbers of a sparse vector, in the order of their places."""
    return [*map(SparseValue, vector.indices.tolist(), vector.values.tolist())]


def head(kind: str, model: str) -> dict[str, Any]:
    """The fields that begin an answer."""
    return {"id": f"{kind}-{unique_id()}", "created": int(time.time()), "model": model}


def embeddings(vectors: Float32, *, as_base64: bool) -> list[Embedding]:
    """The vectors of an answer, in their order."""
    spelled: list[Any] = in_base64(vectors) if as_base64 else vectors.tolist()
    return [Embedding(index=i, embedding=each) for i, each in enumerate(spelled)]


def labels(probabilities: Float32, pooler: Pooler) -> list[Label]:
    """The labels of texts, in their order."""
    return [
        Label(
            index=i,
            label=pooler.labels[int(row.argmax())],
            probs=row.tolist(),
            num_classes=len(pooler.labels),
        )
        for i, row in enumerate(probabilities)
    ]


def tei_labels(rows: Float32, pooler: Pooler) -> Sequence[list[TeiLabel]]:
    """The labels of each text, the likeliest first."""
    return [
        [TeiLabel(score=score, label=pooler.labels[i]) for i, score in by_rank(row)] for row in rows
    ]
