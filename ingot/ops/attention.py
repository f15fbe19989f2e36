"""attention: causal attention of one sequence over itself (plain graphs only)."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops.registry import register, rounded


def scores_of(
    q: Tensor, k: Tensor, first: int, scale: float, window: int, softcap: float
) -> Tensor:
    """q [N, H, D] at positions first.., k [H, M, D] at positions 0.. -> [H, N, M] float32.

    Key j is visible to position i iff j <= i, and i - window < j where window > 0; the scores of
    others are -inf. softcap > 0 bounds scores to softcap * tanh(score / softcap).
    """
    scores = torch.einsum("nhd,hmd->hnm", q.float(), k.float()) * scale
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    i = torch.arange(first, first + q.shape[0], device=q.device)[:, None]
    j = torch.arange(k.shape[1], device=q.device)[None, :]
    visible = (j <= i) & (j > i - window) if window > 0 else j <= i
    return scores.masked_fill(~visible, float("-inf"))


def attend(
    q: Tensor, k: Tensor, v: Tensor, first: int, scale: float, window: int, softcap: float,
    sinks: Tensor | None,
) -> Tensor:  # fmt: skip
    """q [N, Hq, D] at positions first.. over k [M, Hk, D], v [M, Hk, V] at positions 0.. ->
    [N, Hq, V] float32.

    Query head h reads key head h // (Hq / Hk). See `scores_of` for what is visible. A sink takes
    part in the softmax of its head like the score of one more key, whose value is zero.
    """
    group = q.shape[1] // k.shape[1]
    k, v = (x.float().repeat_interleave(group, dim=1).transpose(0, 1) for x in (k, v))
    scores = scores_of(q, k, first, scale, window, softcap)
    if sinks is not None:
        logits = sinks.float()[:, None, None].expand(-1, scores.shape[1], 1)
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
) -> Tensor:
    """q [1, N, Hq, D], k [1, N, Hk, D], v [1, N, Hk, V], sinks [Hq] -> [1, N, Hq, V].

    Without v the values are the first `value_size` columns of the keys. See `attend`.
    """
    v = k[..., :value_size] if v is None else v
    return attend(q[0], k[0], v[0], 0, scale, window, softcap, sinks)[None]


def result(q: Tensor, value_size: int, dtype: torch.dtype) -> Tensor:
    """An empty tensor with a value for every query head."""
    return q.new_empty((*q.shape[:-1], value_size), dtype=dtype)


register(
    "attention",
    reference,
    lambda a: result(a.q, a.value_size if a.v is None else a.v.shape[-1], a.out_dtype),
)
