"""route: which experts compute a row, and with what share of the result."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops.registry import like, register

LOWEST = torch.finfo(torch.float32).min  # candidates are at least that; what is left out is -inf


def reference(
    logits: Tensor,
    bias: Tensor | None,
    scoring: str,
    top_k: int,
    groups: int = 1,
    kept_groups: int = 1,
    group_score: str = "max",
    normalise: bool = False,
    eps: float = 0.0,
    scale: float = 1.0,
    narrow: bool = False,
) -> Tensor:
    """logits [1, N, E], bias [E] or None -> shares float32 [1, N, E], 0 for experts not picked.

    Each row picks the `top_k` experts of the largest score + bias; where they are equal, the lower
    index. NaN counts as the largest. A share is the score alone: over the sum of those picked plus
    `eps` if `normalise`, and times `scale`. Shares normalised so are those of a softmax over the
    picked logits, too.

    Args:
        scoring: "softmax" or "sigmoid" of the logits.
        groups: neighbouring experts in so many groups of one size, of which only those with the
            largest score are candidates, `kept_groups` of them.
        group_score: "max", or "top2" for the sum of the two largest.
        narrow: the logits are rounded to the dtype of the model's weights before; without effect
            here, where they are given.

    Sources: Mixtral (arXiv 2401.04088); DeepSeek-V2 (2405.04434) and -V3 (2412.19437) for groups
    and biases.
    """
    scores = logits.float()
    scores = scores.softmax(-1) if scoring == "softmax" else scores.sigmoid()
    wanted = scores if bias is None else scores + bias.float()
    wanted = wanted.nan_to_num(torch.inf, torch.inf).clamp(min=LOWEST)
    if kept_groups < groups:
        wanted = within_groups(wanted.unflatten(-1, (groups, -1)), kept_groups, group_score)
    picks = largest(wanted, top_k)
    shares = scores.gather(-1, picks)
    if normalise:
        shares = shares / (shares.sum(-1, keepdim=True) + eps)
    return torch.zeros_like(scores).scatter(-1, picks, shares * scale)


def within_groups(wanted: Tensor, kept: int, group_score: str) -> Tensor:
    """wanted [..., G, E / G] -> [..., E], -inf outside of the groups that are kept."""
    counted = 2 if group_score == "top2" else 1
    best = wanted.topk(min(counted, wanted.shape[-1]), -1).values.sum(-1)
    chosen = torch.zeros_like(best, dtype=torch.bool).scatter(-1, largest(best, kept), True)
    return wanted.masked_fill(~chosen[..., None], -torch.inf).flatten(-2)


def largest(values: Tensor, count: int) -> Tensor:
    """values [..., K] -> the places of the largest, ascending; among equals the first."""
    order = torch.sort(values, dim=-1, descending=True, stable=True).indices
    return order[..., :count].sort(-1).values


register("route", reference, lambda a: like(a.logits, torch.float32))
