"""Mixers that keep one record of a sequence, over a batch whose texts may be padded on the left.

B sequences, T new tokens, C channels, H heads, D and P the height and width of a head's matrix.
Each takes the records of before and gives, beside its rows, those of after.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops.scan import scan

from ingot.ops.recurrence import advance

Given = Mapping[str, Any]  # the arguments of an op; rows are [B, T, ...]
Mixed = tuple[Tensor, Tensor]  # rows, and records


def token_shift(given: Given, tail: Tensor) -> Mixed:
    """x [B, T, C], tail [B, 1, C]."""
    rows = torch.cat((tail, given["x"]), 1)
    return rows[:, :-1], rows[:, -1:].clone()


def short_conv(given: Given, tail: Tensor) -> Mixed:
    """x [B, T, C], tail [B, K - 1, C]."""
    x, weight, bias = (given[name] for name in ("x", "weight", "bias"))
    rows, tokens, taps = torch.cat((tail, x), 1), x.shape[1], weight.shape[0]
    sums = weight[0] * rows[:, :tokens]
    for j in range(1, taps):
        sums = sums + weight[j] * rows[:, j : j + tokens]
    sums = sums if bias is None else sums + bias
    out = torch.nn.functional.silu(sums) if given["activates"] else sums
    return out, rows[:, 1 - taps :].clone()


def recurrence(given: Given, state: Tensor) -> Mixed:
    """q, k [B, T, G, D], v [B, T, H, P], state [B, H * D, P]."""
    v, decay, skip, rule = (given[name] for name in ("v", "decay", "skip", "rule"))
    heads, size = v.shape[2], given["k"].shape[3]
    q, k = (
        given[name].repeat_interleave(heads // given[name].shape[2], dim=2) for name in ("q", "k")
    )
    decay = decay[..., None] if decay.dim() == 3 else decay
    given = {**given, "q": q, "k": k, "decay": decay}
    names = [name for name in ("q", "k", "v", "decay", "beta", "a", "b") if given[name] is not None]

    def step(matrix: Tensor, rows: tuple[Tensor, ...]) -> Mixed:
        out, matrix = advance(matrix, rule, dict(zip(names, rows, strict=True)))
        return matrix, out

    rows = tuple(given[name] for name in names)
    out, matrix = over_tokens(step, state.unflatten(1, (heads, size)), rows)
    out = out if skip is None else out + skip[:, None] * v
    return out, matrix.flatten(1, 2)


def selective_scan(given: Given, state: Tensor) -> Mixed:
    """x, dt [B, T, C], b, c [B, T, D], state [B, D, C]."""
    x, dt, rate = (given[name] for name in ("x", "dt", "rate"))

    def step(h: Tensor, rows: tuple[Tensor, ...]) -> Mixed:
        taken, dt, b, c = rows
        h = torch.exp(dt[:, None] * rate) * h + taken[:, None] * b[:, :, None]
        return h, torch.matmul(c[:, None], h)[:, 0]

    out, h = over_tokens(step, state, (dt * x, dt, given["b"], given["c"]))
    return out + given["skip"] * x, h


def over_tokens(
    step: Callable[..., Mixed], record: Tensor, rows: tuple[Tensor, ...]
) -> tuple[Tensor, Tensor]:
    """One step for each token of rows [B, T, ...]: what all give [B, T, ...], and the record of
    after."""
    record, out = scan(step, record, tuple(each.transpose(0, 1) for each in rows))
    return out.transpose(0, 1), record


MIXERS: Mapping[str, Callable[[Given, Tensor], Mixed]] = {
    each.__name__: each for each in (token_shift, short_conv, recurrence, selective_scan)
}
