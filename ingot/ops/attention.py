"""attention: attention of one sequence over itself (plain graphs only)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ingot.ops.registry import register, rounded


@dataclass(frozen=True, slots=True)
class DistanceBias:
    """What is added to scores, by how far a query stands behind a key.

    Attributes:
        buckets: [2 R + 1]: the number of the bucket of each distance from -R to R. Those that are
            farther have the buckets of the ends.
        heads: [Hq, B] or None: for each bucket what is added to the score.
        queries, keys: [..., N, Hq, B] and [..., M, Hk, B] or None: for each bucket what is added to
            the product of the query, or of the key, with any other.
    """

    buckets: Tensor
    heads: Tensor | None
    queries: Tensor | None
    keys: Tensor | None

    def of(self, products: Tensor, first: int, scale: float) -> Tensor:
        """Scores [..., H, N, M] of products of queries at positions first.. and keys at 0.."""
        *lead, heads, n, m = products.shape
        reach = len(self.buckets) // 2
        i = torch.arange(first, first + n, device=products.device)[:, None]
        j = torch.arange(m, device=products.device)[None, :]
        found = self.buckets[(i - j).clamp(-reach, reach) + reach].long()
        if self.queries is not None:
            rows = self.queries.float().transpose(-3, -2)
            products = products + rows.gather(-1, found.expand(*lead, heads, n, m))
        if self.keys is not None:
            rows = self.keys.float().transpose(-3, -2)
            rows = rows.repeat_interleave(heads // rows.shape[-3], dim=-3)
            turned = rows.gather(-1, found.T.expand(*lead, heads, m, n))
            products = products + turned.transpose(-2, -1)
        scores = products * scale
        return scores if self.heads is None else scores + self.heads.float()[:, found]


def bias_of(
    heads: Tensor | None, queries: Tensor | None, keys: Tensor | None, buckets: Tensor | None
) -> DistanceBias | None:
    """The bias that an op is given, whose rows begin with a dimension of 1."""
    if buckets is None:
        return None
    queries, keys = (None if rows is None else rows[0] for rows in (queries, keys))
    return DistanceBias(buckets, heads, queries, keys)


@dataclass(frozen=True, slots=True)
class SoftmaxScope:
    """The keys that the softmax of attention is over.

    Attributes:
        scale: what products of queries and keys are multiplied by.
        window: position i sees key j only if |i - j| < window, where window > 0.
        softcap: where it is not 0, scores are bounded to softcap * tanh(score / softcap).
        sinks: [Hq] or None: a score of each head beside those of keys, whose value is zero.
        causal: position i sees key j only if j <= i.
        bias: what is added to scores before they are bounded.
    """

    scale: float
    window: int = 0
    softcap: float = 0.0
    sinks: Tensor | None = None
    causal: bool = True
    bias: DistanceBias | None = None


def scores_of(q: Tensor, k: Tensor, first: int, scoring: SoftmaxScope) -> Tensor:
    """q [N, H, D] at positions first.., k [H, M, D] at positions 0.. -> [H, N, M] float32.

    The scores of keys that are not visible are -inf. Sinks are left to the caller.
    """
    softcap, scale = scoring.softcap, scoring.scale
    scores = torch.einsum("nhd,hmd->hnm", q.float(), k.float())
    scores = scoring.bias.of(scores, first, scale) if scoring.bias else scores * scale
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
    bias: Tensor | None = None,
    q_bias: Tensor | None = None,
    k_bias: Tensor | None = None,
    buckets: Tensor | None = None,
) -> Tensor:
    """q [1, N, Hq, D], k [1, N, Hk, D], v [1, N, Hk, V], sinks [Hq] -> [1, N, Hq, V].

    Without v the values are the first `value_size` columns of the keys. Biases are [Hq, B],
    [1, N, Hq, B] and [1, N, Hk, B]. See `SoftmaxScope`, and `DistanceBias`.
    """
    v = k[..., :value_size] if v is None else v
    added = bias_of(bias, q_bias, k_bias, buckets)
    scope = SoftmaxScope(scale, window, softcap, sinks, causal, added)
    return attend(q[0], k[0], v[0], 0, scope)[None]


def result(q: Tensor, value_size: int, dtype: torch.dtype) -> Tensor:
    """An empty tensor with a value for every query head."""
    return q.new_empty((*q.shape[:-1], value_size), dtype=dtype)


register(
    "attention",
    reference,
    lambda a: result(a.q, a.value_size if a.v is None else a.v.shape[-1], a.out_dtype),
)
