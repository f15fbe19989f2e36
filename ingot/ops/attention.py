"""attention: attention of one sequence over itself (plain graphs only)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ingot.ops.registry import register, rounded


@dataclass(frozen=True, slots=True)
class SoftmaxScope:
    """The keys that the softmax of attention is over.

    Attributes:
        scale: what products of queries and keys are multiplied by.
        window: position i sees key j only if |i - j| < window, where window > 0.
        softcap: where it is not 0, scores are bounded to softcap * tanh(score / softcap).
        sinks: [Hq] or None: a score of each head beside those of keys, whose value is zero.
        causal: position i sees key j only if j <= i.
    """

    scale: float
    window: int = 0
    softcap: float = 0.0
    sinks: Tensor | None = None
    causal: bool = True


def scores_of(q: Tensor, k: Tensor, first: int, scoring: SoftmaxScope) -> Tensor:
    """q [N, H, D] at positions first.., k [H, M, D] at positions 0.. -> [H, N, M] float32.

    The scores of keys that are not visible are -inf. Sinks are left to the caller.
    """
    softcap = scoring.softcap
    scores = torch.einsum("nhd,hmd->hnm", q.float(), k.float()) * scoring.scale
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    i = torch.arange(first, first + q.shape[0], device=q.device)[:, None]
    j = torch.arange(k.shape[1], device=q.device)[None, :]
    hidden = j > i if scoring.causal else torch.zeros_like(j > i)
    if scoring.window > 0:
        hidden = hidden | ((i - j).abs() >= scoring.window)
    return scores.masked_fill(hidden, float("-inf"))


def attend(q: Tensor, k: Tensor, v: Tensor, first: int, scoring: SoftmaxScope) -> Tensor:
    """q [N, Hq, D] at positions first.. over k [M, Hk, D], v [M, Hk, V] at positions 0.. ->
    [N, Hq, V] float32.

    Query head h reads key head h // (Hq / Hk).
    """
    group = q.shape[1] // k.shape[1]
    k, v = (x.float().repeat_interleave(group, dim=1).transpose(0, 1) for x in (k, v))
    scores = scores_of(q, k, first, scoring)
    if scoring.sinks is not None:
        logits = scoring.sinks.float()[:, None, None].expand(-1, scores.shape[1], 1)
        scores = torch.cat((scores, logits), -1)
    weights = scores.softmax(-1)[..., : k.shape[1]]
    return torch.einsum("hnm,hmd->nhd", weights, v)


@rounded
def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    value_size: int = 0,
    causal: bool = True,
) -> Tensor:
    """q [1, N, Hq, D], k [1, N, Hk, D], v [1, N, Hk, V], sinks [Hq] -> [1, N, Hq, V].

    Without v the values are the first `value_size` columns of the keys. See `SoftmaxScope`.
    """
    v = k[..., :value_size] if v is None else v
    scope = SoftmaxScope(scale, window, softcap, sinks, causal)
    return attend(q[0], k[0], v[0], 0, scope)[None]


def result(q: Tensor, value_size: int, dtype: torch.dtype) -> Tensor:
    """An empty tensor with a value for every query head."""
    return q.new_empty((*q.shape[:-1], value_size), dtype=dtype)


register(
    "attention",
    reference,
    lambda a: result(a.q, a.value_size if a.v is None else a.v.shape[-1], a.out_dtype),
)
