"""Attention of a batch over the keys and values of before, as `Attention` of ONNX defines it.

B sequences, T new tokens, P tokens of before, M = P + T, H query heads, K key-value heads, D head
size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops.attention import SoftmaxScope

Past = tuple[Tensor | None, Tensor | None]  # keys and values
Heads = tuple[int, int]  # of queries, and of keys and values
LOWEST = torch.finfo(torch.float32).min


def visible(mask_BM: Tensor | None, new: Tensor, window: int, *, causal: bool = True) -> Tensor:
    """Mask of the keys that each new token sees, bool [B or 1, 1, T, M].

    Those up to itself, or all where it is not causal, fewer than `window` places away if there is
    one, where the mask of the batch, of integers, is not 0. `new` is [B, T] of anything; without a
    mask nothing is there from before.
    """
    tokens = new.shape[1]
    total = tokens if mask_BM is None else mask_BM.shape[1]
    i_T1 = torch.arange(total - tokens, total, device=new.device)[:, None]
    j_1M = torch.arange(total, device=new.device)[None, :]
    away = i_T1 - j_1M
    seen = away >= 0 if causal else torch.ones_like(away, dtype=torch.bool)
    if window > 0:
        seen = seen & (away.abs() < window)
    seen = seen[None, None]
    return seen if mask_BM is None else seen & (mask_BM != 0)[:, None, None, :]


def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, past: Past, heads: Heads, scoring: SoftmaxScope
) -> tuple[Tensor, Tensor, Tensor]:
    """q [B, T, H*D], k and v [B, T, K*D], mask bool [B or 1, 1, T, M], the past [B, K, P, D] ->
    [B, T, H*D] and, with the new ones, keys and values [B, K, M, D].

    The mask says what is visible, and a window of `scoring` nothing. A bias is for texts without a
    past.

    A row that sees nothing, as of padding, gets finite values that nobody reads: infinite ones
    would spoil the values that come after.
    """
    batch, tokens, _ = q.shape
    count, kv_count = heads
    queries = q.reshape(batch, tokens, count, -1).transpose(1, 2)
    keys, values = (with_past(x, old, kv_count) for x, old in zip((k, v), past, strict=True))
    wide_keys, wide_values = (repeated(x, count // kv_count) for x in (keys, values))
    products = torch.matmul(queries, wide_keys.transpose(2, 3)).float()
    scale, bias = scoring.scale, scoring.bias
    scores = products * scale if bias is None else bias.of(products, 0, scale)
    softcap, sinks = scoring.softcap, scoring.sinks
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    scores = torch.where(mask, scores, LOWEST)
    if sinks is not None:
        logits = sinks.reshape(1, count, 1, 1).expand(batch, count, tokens, 1)
        scores = torch.cat((scores, logits), -1)
    weights = scores.softmax(-1)
    if sinks is not None:
        weights = weights[..., :-1]
    mixed = torch.matmul(weights.to(q.dtype), wide_values)
    return mixed.transpose(1, 2).reshape(batch, tokens, -1), keys, values


def with_past(new: Tensor, past: Tensor | None, heads: int) -> Tensor:
    """New keys or values [B, T, K*D] behind those of before, [B, K, M, D]."""
    batch, tokens, width = new.shape
    rows = new.reshape(batch, tokens, heads, width // heads).transpose(1, 2)
    return rows.clone() if past is None else torch.cat((past, rows), 2)


def repeated(x: Tensor, group: int) -> Tensor:
    """Every head `group` times, one beside the other."""
    if group == 1:
        return x
    batch, heads, total, size = x.shape
    wide = x[:, :, None].expand(batch, heads, group, total, size)
    return wide.reshape(batch, heads * group, total, size)
