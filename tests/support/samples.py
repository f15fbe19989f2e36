"""Building blocks of sample inputs: seeded tensors."""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16)


def normal(rng: torch.Generator, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard normal values of that shape."""
    return torch.randn(shape, generator=rng).to(dtype)


def weight(
    rng: torch.Generator, rows: int, cols: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """A matrix whose product with a unit-variance vector has unit variance."""
    return normal(rng, rows, cols).div(cols**0.5).to(dtype)


def scale_vector(rng: torch.Generator, size: int) -> Tensor:
    """A norm weight: around one, never the same twice."""
    return 1.0 + 0.1 * torch.randn(size, generator=rng)


def caches(
    rng: torch.Generator, shape: tuple[int, int, int, int], dtype: torch.dtype
) -> dict[str, Tensor]:
    """Arguments `k_cache` and `v_cache` of that shape."""
    return {name: normal(rng, *shape, dtype=dtype) for name in ("k_cache", "v_cache")}
