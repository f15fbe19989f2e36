"""Draws the next token of a sequence from its logits.

Every draw takes one uniform number that depends on the seed, the request and the position alone,
so neither the other sequences of a batch nor a preemption can shift it.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ingot.errors import InternalError
from ingot.runtime.output import Logprob
from ingot.runtime.params import SamplingParams

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Ids = npt.NDArray[np.intp]

GREEDY_BELOW = 1e-5  # temperatures; float32 could not tell the scaled logits apart
_FIRST_NUCLEUS = 256  # candidates tried before more are looked for


@dataclass(frozen=True, slots=True)
class Draw:
    """A token, and the log-probabilities that were asked for with it (else empty)."""

    token: int
    logprobs: dict[int, Logprob]


def uniform(seed: int, key: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits, a pure function of its arguments."""
    data = struct.pack("<QQQ", seed, key, position)
    bits = int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
    return (bits >> 11) * 2.0**-53


def sample(
    logits: Float32,
    params: SamplingParams,
    *,
    seed: int,
    key: int,
    position: int,
    banned: tuple[int, ...] = (),
) -> Draw:
    """Draws a token from logits [V], which may be overwritten.

    `banned` tokens are not drawn; log-probabilities are those of the model all the same. Raises
    InternalError when the logits are not finite.
    """
    # One pass finds both a nan and an inf; -inf alone is a masked token and fine.
    best = int(logits.argmax())
    if not np.isfinite(logits[best]):
        raise InternalError("the model's logits are not finite")
    raw = logits if params.logprobs is None or not banned else logits.copy()
    if banned:
        logits[list(banned)] = -np.inf
        best = int(logits.argmax())
    if params.temperature < GREEDY_BELOW:
        token = best
    else:
        ids, probs = distribution(logits, params)
        token = _pick(ids, probs, uniform(seed, key, position))
    return Draw(token, _logprobs(raw, token, params.logprobs))


def distribution(logits: Float32, params: SamplingParams) -> tuple[Ids | None, Float64]:
    """The tokens that can be drawn from logits [V] and their probabilities; None means all V.

    Temperature first, then top_k, then top_p over what top_k left, as vLLM does. Tokens that are
    as likely as the last one kept are kept by top_k; top_p breaks such ties by the lower id.
    """
    ids: Ids | None = None
    if 0 < params.top_k < logits.size:
        threshold = np.partition(logits, -params.top_k)[-params.top_k]
        ids = np.flatnonzero(logits >= threshold)
    kept = logits if ids is None else logits[ids]
    probs = _softmax(kept, params.temperature)
    if params.top_p < 1:
        nucleus = _nucleus(probs, params.top_p)
        ids = nucleus if ids is None else ids[nucleus]
        probs = probs[nucleus]
        probs /= probs.sum()
    return ids, probs


def _softmax(logits: Float32, temperature: float) -> Float64:
    # exp in float32 is several times as fast over a large vocabulary, and good to 1e-6; sums are
    # made in float64.
    scaled = logits - logits.max()
    scaled /= np.float32(temperature)
    np.exp(scaled, out=scaled)
    probs: Float64 = scaled.astype(np.float64)
    probs /= probs.sum()
    return probs


def _nucleus(probs: Float64, top_p: float) -> Ids:
    """Ids of the fewest tokens that reach `top_p`, likeliest first; at least one."""
    # Tokens rarer than this are together rarer than 1 - top_p: the others reach top_p.
    able = np.flatnonzero(probs >= (1 - top_p) / probs.size)
    able = able if able.size else np.arange(probs.size)
    some = probs[able]
    count = min(_FIRST_NUCLEUS, some.size)
    while True:
        # All tokens at least as likely as the count-th, so that ties do not depend on `count`.
        ids = np.flatnonzero(some >= np.partition(some, -count)[-count])
        ids = ids[np.argsort(-some[ids], kind="stable")]
        mass = np.cumsum(some[ids])
        if mass[-1] >= top_p or count == some.size:
            return able[ids[: int(np.searchsorted(mass, top_p)) + 1]]
        count = min(count * 16, some.size)


def _pick(ids: Ids | None, probs: Float64, u: float) -> int:
    mass = np.cumsum(probs)
    # Scaled by the sum as computed, so that rounding cannot put u beyond the last token; `right`
    # skips tokens of probability 0.
    index = int(np.searchsorted(mass, u * mass[-1], side="right"))
    return index if ids is None else int(ids[index])


def _logprobs(logits: Float32, token: int, count: int | None) -> dict[int, Logprob]:
    if count is None:
        return {}
    top = float(logits.max())
    normalizer = top + float(np.log(np.exp(logits - np.float32(top)).sum(dtype=np.float64)))
    rank = int((logits > logits[token]).sum()) + 1
    result = {token: Logprob(float(logits[token]) - normalizer, rank)}
    for place, i in enumerate(top_ids(logits, count), 1):
        result.setdefault(int(i), Logprob(float(logits[i]) - normalizer, place))
    return result


def top_ids(logits: Float32, count: int) -> Ids:
    """The `count` likeliest tokens of logits [V], likeliest first, ties by the lower id."""
    count = min(count, logits.size)
    if count == 0:
        return np.empty(0, np.intp)
    threshold = np.partition(logits, -count)[-count]
    ids = np.flatnonzero(logits >= threshold)
    return ids[np.argsort(-logits[ids], kind="stable")][:count]
