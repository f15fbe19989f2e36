"""Bodies as other libraries write them: rows without a batch, counts of tokens, whole formulas."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.passes.support import HEAD, Lab, flat, heads


def rows_without_batch(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    rows = x.reshape(-1, x.shape[-1])
    return (rows + lab.q(F.relu(lab.k(rows)))).view(x.shape)


def rows_that_meet(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    rows = x.reshape(-1, x.shape[-1])
    return x + lab.q(rows.cumsum(0)).view(x.shape)


def rows_with_others(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    rows = x.reshape(-1, x.shape[-1])
    return x + (rows + x.cumsum(1)[0]).view(x.shape)


def counted(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    count = torch.arange(x.shape[1], device=x.device)
    table = F.embedding(count, lab.embed.weight)
    mask = torch.ones(1, x.shape[1], dtype=torch.int64, device=x.device)
    return x + table + F.embedding(mask.cumsum(-1) * mask - 1, lab.embed.weight)


def counted_otherwise(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    late = torch.arange(1, x.shape[1] + 1, device=x.device)[None]
    twice = torch.arange(0, 2 * x.shape[1], 2, device=x.device)[None]
    return x * (late * twice + twice.cumsum(-1))[..., None]


def gelus(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    x = 0.5 * x * (1.0 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))
    x = 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x)))
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).pow(2).mean(-1, keepdim=True)
    return lab.w * ((x - mean) * torch.rsqrt(variance + 1e-5))


def another_gelu(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(0.8 * (x + 0.044715 * torch.pow(x, 3.0))))


def norm_of_another_mean(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    mean, other = x.mean(-1, keepdim=True), (x * x).mean(-1, keepdim=True)
    variance = (x - other).pow(2).mean(-1, keepdim=True)
    return lab.w * ((x - mean) * torch.rsqrt(variance + 1e-5))


def quotients(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return (lab.q(x) / 3.0) / 8


def quotient_of_tensors(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return x / lab.w + 1 / x


def causal(x: Tensor, window: int = 0, future: int = 0) -> Tensor:
    """A mask [1, 1, T, T] that is added to scores."""
    at = torch.arange(x.shape[1], device=x.device)
    seen = at[None, :] <= at[:, None] + future if future else at[None, :] <= at[:, None]
    if window:
        seen = seen & (at[None, :] > at[:, None] - window)
    return torch.where(seen, 0.0, torch.finfo(torch.float32).min)[None, None]


def parts(lab: Lab, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (heads(linear(x)).transpose(1, 2) for linear in (lab.q, lab.k, lab.v))
    return q, k, v


def spelled(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    """Once with a scale, once with a window, a cap, and the scale behind the mask."""
    q, k, v = parts(lab, x)
    scores = q @ k.transpose(2, 3) * HEAD**-0.5 + causal(x)
    x = flat((F.softmax(scores, dim=-1, dtype=torch.float32) @ v).transpose(1, 2))
    q, k, v = parts(lab, x)
    scores = torch.tanh(q @ k.transpose(-1, -2) * 0.4 / 3.0) * 3.0
    return flat(((scores + causal(x, window=3)).softmax(-1) @ v).transpose(1, 2))


def spelled_with_a_late_scale(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    q, k, v = parts(lab, x)
    scores = (q @ k.transpose(2, 3) + causal(x)) / 2.0
    return flat((scores.softmax(-1) @ v).transpose(1, 2))


def unmasked(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    q, k, v = parts(lab, x)
    return flat(((q @ k.transpose(2, 3)).softmax(-1) @ v).transpose(1, 2))


def masked_otherwise(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    q, k, v = parts(lab, x)
    return flat(((q @ k.transpose(2, 3) + causal(x, future=1)).softmax(-1) @ v).transpose(1, 2))


def masked_twice(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    q, k, v = parts(lab, x)
    scores = q @ k.transpose(2, 3) + causal(x) + causal(x, window=3)
    return flat((scores.softmax(-1) @ v).transpose(1, 2))


def capped_before_the_scale(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    q, k, v = parts(lab, x)
    scores = torch.tanh(q @ k.transpose(2, 3) / 3.0) * 3.0 * 0.5 + causal(x)
    return flat((scores.softmax(-1) @ v).transpose(1, 2))


def softmax_of_queries(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    q, k, v = parts(lab, x)
    return flat(((q @ k.transpose(2, 3) + causal(x)).softmax(-2) @ v).transpose(1, 2))
