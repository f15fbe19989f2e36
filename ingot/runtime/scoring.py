"""From the rows of whole texts to what callers get: vectors, similarities, probabilities."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from ingot.artifact.pooler import Pooler
from ingot.errors import RequestError
from ingot.runtime.arrays import Float32


def prompt_of(pooler: Pooler, name: str | None) -> str:
    """The prompt of that name; None: the model's default, if it has one. Raises RequestError."""
    name = pooler.default_prompt if name is None else name
    if name and name not in pooler.prompts:
        raise RequestError(
            f"prompt_name is {name!r:.80}",
            hint=f"The model has {', '.join(pooler.prompts) or 'no prompts'}.",
        )
    return pooler.prompts.get(name, "")


def finished(
    rows: Float32, pooler: Pooler, dimensions: Any = None, *, normalize: bool = False
) -> Float32:
    """Vectors [N, size] as they leave: cut, then made 1 long where the model or the caller wants
    it. Raises RequestError for a size that they cannot be cut to."""
    if dimensions is not None:
        check_dimensions(pooler, dimensions)
        rows = rows[:, :dimensions]
    return normalized(rows) if normalize or pooler.normalize else rows


def check_dimensions(pooler: Pooler, wanted: Any) -> None:
    """Raises RequestError for a size that vectors cannot be cut to."""
    any_size = pooler.nested and not pooler.dimensions
    sizes = range(1, pooler.size + 1) if any_size else {*pooler.dimensions, pooler.size}
    if type(wanted) is not int or wanted not in sizes:
        listed = f"1 to {pooler.size}" if any_size else ", ".join(map(str, sorted(sizes)))
        raise RequestError(
            f"dimensions is {wanted!r:.40}",
            hint=f"The vectors of this model have, or can be cut to: {listed}.",
        )


def normalized(rows: Float32) -> Float32:
    """Vectors [N, size] of length 1; zeros stay zeros."""
    wide = rows.astype(np.float64)
    lengths = np.sqrt(np.square(wide).sum(-1, keepdims=True))
    return (wide / np.where(lengths == 0, 1, lengths)).astype(np.float32)


def similarity(one: Float32, other: Float32, pooler: Pooler) -> Float32:
    """How alike vectors are, [A, B] of [A, size] and [B, size], by the model's own measure."""
    if pooler.similarity in ("euclidean", "manhattan"):
        order = 2 if pooler.similarity == "euclidean" else 1
        apart = np.linalg.norm(one[:, None] - other[None], ord=order, axis=-1)
        near: Float32 = (-apart).astype(np.float32)
        return near
    if pooler.similarity == "cosine":
        one, other = normalized(one), normalized(other)
    alike: Float32 = one @ other.T
    return alike


def paired_scores(one: Float32, other: Float32, pooler: Pooler) -> Float32:
    """How alike the vectors of each pair are, [N] of [N, size] and [N, size]."""
    pairs = zip(one, other, strict=True)
    found = [float(similarity(a[None], b[None], pooler)[0, 0]) for a, b in pairs]
    return np.array(found, np.float32)


def rows_of(data: bytes, count: int) -> Float32:
    """Rows [count, columns] from their bytes."""
    return np.frombuffer(data, np.float32).reshape(count, -1)


def as_base64(rows: Float32) -> list[str]:
    """Each row as its little-endian numbers in base64."""
    return [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in rows]


def by_rank(scores: Float32, top: int | None = None) -> list[tuple[int, float]]:
    """The places of scores [N] and the scores, the best first, equal ones by their places."""
    order = np.argsort(-scores, kind="stable")[:top]
    return [(int(i), float(scores[i])) for i in order]


def activated(scores: Float32, pooler: Pooler) -> Float32:
    """Probabilities of labels [N, labels], where the model's scores stand for some."""
    if pooler.activation == "none":
        return scores
    wide = scores.astype(np.float64)
    if pooler.activation == "sigmoid":
        made = 1 / (1 + np.exp(-wide))
    else:
        grown = np.exp(wide - wide.max(-1, keepdims=True))
        made = grown / grown.sum(-1, keepdims=True)
    probabilities: Float32 = made.astype(np.float32)
    return probabilities
