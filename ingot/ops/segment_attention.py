"""segment_attention: attention of a step's rows over the rows of their own segment, uncached."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops.attention import SoftmaxScope, bias_of, result
from ingot.ops.paged_attention import TOLERANCE, attend_rounded
from ingot.ops.registry import register, rounded


@rounded
def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    spans: Tensor,
    scale: float,
    causal: bool = False,
    window: int = 0,
    softcap: float = 0.0,
    bias: Tensor | None = None,
    q_bias: Tensor | None = None,
    k_bias: Tensor | None = None,
    buckets: Tensor | None = None,
) -> Tensor:
    """q [1, N, Hq, D], k [1, N, Hk, D], v [1, N, Hk, V], spans [S, 3] -> [1, N, Hq, V].

    Segment s is the rows from spans[s, 0] to spans[s, 1]; its third number says nothing here. Row i
    sees row j of its segment iff |i - j| < window, where window > 0, and j <= i, where causal.
    Biases are [Hq, B], [1, N, Hq, B] and [1, N, Hk, B], and depend on i - j: see `DistanceBias`.
    See `attend_rounded` for what is rounded.
    """
    out = result(q, v.shape[-1], torch.float32).zero_()
    for begin, end, _ in spans[spans[:, 0] < spans[:, 1]].tolist():
        of_q, of_k = (None if x is None else x[:, begin:end] for x in (q_bias, k_bias))
        added = bias_of(bias, of_q, of_k, buckets)
        scope = SoftmaxScope(scale, window, softcap, causal=causal, bias=added)
        keys, values = (x[0, begin:end].transpose(0, 1) for x in (k, v))
        out[0, begin:end] = attend_rounded(q[0, begin:end], keys, values, None, 0, scope, q.dtype)
    return out


register(
    "segment_attention",
    reference,
    lambda a: result(a.q, a.v.shape[-1], a.out_dtype),
    tolerance=TOLERANCE,
)
