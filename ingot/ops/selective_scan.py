"""selective_scan: a small vector for each channel that decays and takes up inputs (Mamba).

Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", arXiv 2312.00752.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops.records import runs
from ingot.ops.registry import like, register, rounded

# Tokens whose inputs are made at a time. Only h goes from token to token.
TOKENS_AT_ONCE = 64


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
        for begin in range(own.start, own.stop, TOKENS_AT_ONCE):
            rows = slice(begin, min(begin + TOKENS_AT_ONCE, own.stop))
            fades = torch.exp(dt[0, rows, None] * rate)
            taken = (dt * x)[0, rows, None] * b[0, rows, :, None]
            passed = []
            for fade, added in zip(fades.unbind(), taken.unbind(), strict=True):
                passed.append(h := torch.addcmul(added, fade, h))
            out[0, rows] = (c[0, rows, None] @ torch.stack(passed)).squeeze(1)
        if kept is not None:
            kept.copy_(h)
    return out + skip.float() * x


register(
    "selective_scan",
    reference,
    lambda a: like(a.x, a.out_dtype),
    record=lambda a: (int(a.b.shape[2]), int(a.x.shape[2])),
)
