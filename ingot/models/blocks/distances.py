"""The buckets of distances, in the order of operations of `transformers`, so that they agree."""

from __future__ import annotations

import math

import torch

from ingot.models.distances import DistanceConfig


def buckets_of(config: DistanceConfig) -> torch.Tensor:
    """The bucket of each distance from -farthest to farthest, float32 on the CPU."""
    reach = config.farthest
    distances = torch.arange(-reach, reach + 1, dtype=torch.int64, device="cpu")
    return SPACINGS[config.spacing](distances, config.buckets, reach).float()


def t5(distances: torch.Tensor, buckets: int, farthest: int) -> torch.Tensor:
    """Half of the buckets for either direction, and half of those for distances one by one."""
    half, exact = buckets // 2, buckets // 4
    far = distances.abs()
    share = torch.log(far.clamp(min=1).float() / exact) / math.log(farthest / exact)
    shared = (exact + (share * (half - exact)).to(torch.long)).clamp(max=half - 1)
    return torch.where(far < exact, far, shared) + half * (distances < 0)


def deberta(distances: torch.Tensor, buckets: int, farthest: int) -> torch.Tensor:
    """The same with the nearest in the middle."""
    half = buckets // 2
    exact = half // 2
    far = distances.abs().clamp(min=exact)
    span = torch.log(torch.tensor((farthest - 1) / exact, device="cpu"))
    share = torch.ceil(torch.log(far / exact) / span * (exact - 1)) + exact
    found = torch.where(far <= exact, distances.float(), share * distances.sign())
    return even(found.to(torch.long), buckets, farthest)


def even(distances: torch.Tensor, buckets: int, farthest: int) -> torch.Tensor:
    """A bucket for each."""
    return (distances + buckets // 2).clamp(0, buckets - 1)


SPACINGS = {"t5": t5, "deberta": deberta, "even": even}
