"""From the rows of whole texts to what callers get: vectors, similarities, probabilities."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingot.artifact.pooler import Pooler
from ingot.errors import RequestError
from ingot.runtime.arrays import Float32, Int32


@dataclass(frozen=True, slots=True)
class SparseVector:
    """The numbers of a vector that are not 0, float32, and their places, int32."""

    indices: Int32
    values: Float32


def sparse(rows: Float32, most: int | None = None) -> list[SparseVector]:
    """Vectors [N, size] without their zeros; of each at most so many of the largest numbers."""
    found = []
    for row in rows:
        places = np.flatnonzero(row)
        if most is not None and len(places) > most:
            places = np.sort(places[np.argsort(-row[places], kind="stable")[:most]])
        found.append(SparseVector(places.astype(np.int32), row[places]))
    return found


TASKS = {"embedding": "embed", "score": "classify"}  # as older versions of vLLM spell them
SHORTEST = float(np.finfo(np.float64).tiny)  # what a vector of zeros counts as long as


def task_of(pooler: Pooler, wanted: str | None) -> str:
    """What is made of texts: what the model was made for, or vectors of tokens. Raises RequestError
    for what it does not do."""
    task = pooler.task if wanted is None else TASKS.get(wanted, wanted)
    both = pooler.task == "embed" and pooler.tokens
    tasks = [pooler.task, *(["token_embed"] if both else [])]
    if task not in tasks:
        raise RequestError(f"task is {wanted!r:.80}", hint=f"Supported: {', '.join(tasks)}.")
    return task


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
    """Vectors [N, size], of texts or tokens, as they leave: cut, then made 1 long where the model
    or the caller wants it. Raises RequestError for a size that they cannot be cut to."""
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
    lengths = np.sqrt(np.add.reduce(wide * wide, axis=-1, keepdims=True))
    wide /= np.maximum(lengths, SHORTEST)
    return wide.astype(np.float32)


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


def scores_of(
    rows: Sequence[Float32] | Float32, pairs: Sequence[tuple[int, int]], pooler: Pooler
) -> Float32:
    """How alike the texts of each pair of places are, [N], by a vector of each text, or by those
    of its tokens."""
    if pooler.task == "token_embed":
        made = [finished(each, pooler) for each in rows]
        found = [maxsim(made[a], made[b], pooler) for a, b in pairs]
    else:
        found = [float(similarity(rows[a][None], rows[b][None], pooler)[0, 0]) for a, b in pairs]
    return np.array(found, np.float32)


def maxsim(one: Float32, other: Float32, pooler: Pooler) -> float:
    """How well the tokens of a text are met by those of another, of their vectors [A, size] and
    [B, size]: the best product of each with any of the other, summed up, or their mean."""
    best = (one.astype(np.float64) @ other.astype(np.float64).T).max(1)
    return float(best.mean() if pooler.similarity == "meanmaxsim" else best.sum())


def token_rows_of(data: bytes, lengths: Sequence[int]) -> list[Float32]:
    """The rows of the tokens of each text [tokens, columns] from their bytes."""
    rows = rows_of(data, sum(lengths))
    return np.split(rows, np.cumsum(lengths)[:-1])


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


def answered(rows: Float32, pooler: Pooler) -> Float32:
    """Rows [N, columns], of texts or tokens, as they leave: probabilities of labels, or vectors."""
    return activated(rows, pooler) if pooler.labels else finished(rows, pooler)


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
