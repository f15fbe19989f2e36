"""Building blocks of sample inputs: seeded tensors and a paged step of several sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16)
CACHE_DTYPES = (*DTYPES, torch.int8)


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


def with_outliers(rng: torch.Generator, *shape: int) -> Tensor:
    """Normal values, the first one huge; the last row is zero but for its first value."""
    x = normal(rng, *shape)
    x[..., -1, 1:] = 0
    x[..., 0, 0] = 1e4
    return x


def quantized_weight(
    rng: torch.Generator, rows: int, cols: int, *, group: int, block: int, bits: int
) -> dict[str, Tensor | None]:
    """Arguments `weight`, `weight_multipliers` and `weight_scales` of a quantized matrix over the
    whole range; scales are of float16 and of either sign, and the first is zero."""
    bound = 2 ** (bits - 1)
    lowest = -bound if bits == 4 else 1 - bound
    values = torch.randint(lowest, bound, (rows, cols), generator=rng).to(torch.int8)
    multipliers = torch.randint(-8, 8, (rows, cols // group), generator=rng).to(torch.int8)
    largest = bound * (8 if group < block else 1)
    scales = (normal(rng, rows, cols // block) / largest / cols**0.5).half().float()
    scales[0, 0] = 0
    return {
        "weight": values,
        "weight_multipliers": multipliers if group < block else None,
        "weight_scales": scales,
    }


def caches(
    rng: torch.Generator, shape: tuple[int, int, int, int], dtype: torch.dtype
) -> dict[str, Tensor]:
    """Arguments `k_cache` and `v_cache` of that shape, with their scales where they are int8."""
    if dtype.is_floating_point:
        return {name: normal(rng, *shape, dtype=dtype) for name in ("k_cache", "v_cache")}
    values = {
        name: torch.randint(-127, 128, shape, generator=rng).to(dtype)
        for name in ("k_cache", "v_cache")
    }
    return values | {
        name: torch.rand(shape[:3], generator=rng) / 64 for name in ("k_scales", "v_scales")
    }


@dataclass(frozen=True, slots=True)
class PagedStep:
    """The integer inputs of one step; pages are handed out in random order."""

    slots: Tensor
    query_start: Tensor
    context_lens: Tensor
    page_table: Tensor
    num_pages: int


def paged_step(
    rng: torch.Generator, sequences: Sequence[tuple[int, int]], page_size: int
) -> PagedStep:
    """A step of sequences given as (rows in this step, context length after it)."""
    needed = [-(-context // page_size) for _, context in sequences]
    num_pages = sum(needed) + 1
    order = torch.randperm(num_pages, generator=rng).tolist()
    page_table = torch.zeros(len(needed), max(needed), dtype=torch.int32)
    slots: list[int] = []
    for row, (num_rows, context) in enumerate(sequences):
        pages = [order.pop() for _ in range(needed[row])]
        page_table[row, : len(pages)] = torch.tensor(pages, dtype=torch.int32)
        positions = range(context - num_rows, context)
        slots += [pages[p // page_size] * page_size + p % page_size for p in positions]
    starts = [0]
    for num_rows, _ in sequences:
        starts.append(starts[-1] + num_rows)
    return PagedStep(
        slots=torch.tensor(slots, dtype=torch.int32),
        query_start=torch.tensor(starts, dtype=torch.int32),
        context_lens=torch.tensor([context for _, context in sequences], dtype=torch.int32),
        page_table=page_table,
        num_pages=num_pages,
    )
