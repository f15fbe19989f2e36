"""short_conv: a causal convolution over the last few rows of a sequence, channel by channel."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu

from ingot.ops.records import runs
from ingot.ops.registry import like, register, rounded


@rounded
def reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activates: bool = False,
    tail: Tensor | None = None,
    spans: Tensor | None = None,
    records: Tensor | None = None,
) -> Tensor:
    """x [1, N, C], weight [K, C], bias [C] or None -> [1, N, C].

    Row t is the sum of weight[j] * x[t - (K - 1 - j)], j ascending from 0, plus the bias; rows
    before the first of a sequence are zeros. With `activates` it is then silu of that.

    Without `tail`, x is one whole sequence. With it, x has the rows of several, as `spans` says;
    the record of each, tail [slots, K - 1, C], has its last K - 1 rows before these, the oldest
    first, and after the call the last of all.
    """
    taps = weight.shape[0]
    out = torch.zeros(x.shape, device=x.device)
    for own, before, kept, _ in runs(x, (taps - 1, x.shape[2]), tail, spans, records):
        rows = torch.cat((before, x[0, own].float()))
        count = own.stop - own.start
        sums = torch.zeros(count, x.shape[2], device=x.device)
        for j in range(taps):
            sums = sums + weight[j].float() * rows[j : j + count]
        out[0, own] = sums if bias is None else sums + bias.float()
        if kept is not None:
            kept.copy_(rows[count:])
    return silu(out) if activates else out


register(
    "short_conv",
    reference,
    lambda a: like(a.x, a.out_dtype),
    record=lambda a: (int(a.weight.shape[0]) - 1, int(a.x.shape[2])),
)
