"""selective_scan: a small vector for each channel that decays and takes up inputs (Mamba).

Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", arXiv 2312.00752.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops.records import runs
from ingot.ops.registry import like, register, rounded


@rounded
def reference(
    x: Tensor,
    dt: Tensor,
    b: Tensor,
    c: Tensor,
    rate: Tensor,
    skip: Tensor,
    state: Tensor | None = None,
    spans: Tensor | None = None,
    records: Tensor | None = None,
) -> Tensor:
    """x, dt [1, N, C], b, c [1, N, D], rate [D, C], skip [C] -> [1, N, C].

    Channel j has a vector h [D] that begins as zeros. For each token

        h[d] = exp(dt[j] rate[d, j]) h[d] + dt[j] x[j] b[d];  out[j] = sum over d of c[d] h[d]

    plus skip[j] x[j]. Rates are negative.

    Without `state`, rows are one whole sequence. With it, they are those of several, as `spans`
    says; the record of each, state [slots, D, C], has h of every channel as its tokens before have
    left it.
    """
    x, dt, b, c, rate = (given.float() for given in (x, dt, b, c, rate))
    out = torch.zeros(x.shape, device=x.device)
    for own, h, kept, _ in runs(x, (b.shape[2], x.shape[2]), state, spans, records):
        for t in range(own.start, own.stop):
            taken = dt[0, t] * x[0, t]
            h = torch.exp(dt[0, t] * rate) * h + taken * b[0, t, :, None]
            out[0, t] = c[0, t] @ h
        if kept is not None:
            kept.copy_(h)
    return out + skip.float() * x


register(
    "selective_scan",
    reference,
    lambda a: like(a.x, a.out_dtype),
    record=lambda a: (int(a.b.shape[2]), int(a.x.shape[2])),
)
