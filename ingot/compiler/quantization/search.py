"""The scale of every group that loses least: a few starts, each brought to its best scale.

For fixed integers q the scale that minimises |w - s q|^2 is s = <w, q> / <q, q>, and what is left
is |w|^2 - <w, q>^2 / <q, q>. So each start rounds the group once and is judged by the second term;
the winner's scale is rounded to float16, and the group is rounded anew with that. Starts put
the largest magnitude of the group at a level of its own: at -8 of int4, which reaches further than
7, so that scales of either sign occur.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from ingot.errors import CheckpointError

RANGES = {8: (-127.0, 127.0), 4: (-8.0, 7.0)}
# Levels that the largest magnitude of a group is put at; beyond the range it is clipped.
STARTS = {8: (127.0, 126.0, 125.0, 124.0), 4: (-9.0, -8.5, -8.0, -7.5, -7.0, -6.5)}
# Elements that are worked on together: they stay in the cache.
AT_ONCE = 1 << 17
LARGEST_SCALE = 65504.0


def quantize_rows(rows: Tensor, *, bits: int, group: int) -> tuple[Tensor, Tensor]:
    """Rows [R, K] of any float dtype -> values int8 [R, K], scales float32 [R, K / group].

    Scales are representable in float16.

    Raises:
        CheckpointError: weights so large that float16 does not hold their scale.
    """
    num_rows, columns = rows.shape
    values = torch.empty(num_rows, columns, dtype=torch.int8)
    scales = torch.empty(num_rows, columns // group)
    step = max(1, AT_ONCE // columns)
    with one_thread():
        for start in range(0, num_rows, step):
            part = slice(start, start + step)
            # Groups lie side by side: reductions over them run along vector registers.
            groups = rows[part].reshape(-1, group).T.float().contiguous()
            found = best_scales(groups, bits=bits)
            values[part] = round_to(groups, found, bits).T.reshape(-1, columns)
            scales[part] = found.view(-1, columns // group)
    return values, scales


@contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch without threads of its own: work this small costs less than handing it out."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def best_scales(groups: Tensor, *, bits: int, starts: Sequence[float] = ()) -> Tensor:
    """Groups [G, M] -> the scale of each, float32 [M], representable in float16; 0 for zeros."""
    low, high = RANGES[bits]
    largest, smallest = groups.amax(0), groups.amin(0)
    extreme = torch.where(largest >= -smallest, largest, smallest)
    inverse = torch.where(extreme == 0, 0.0, 1 / extreme)
    best, scales = torch.zeros_like(extreme), torch.zeros_like(extreme)
    q, product = torch.empty_like(groups), torch.empty_like(groups)
    for start in starts or STARTS[bits]:
        torch.mul(groups, inverse * start, out=q).round_().clamp_(low, high)
        fit = torch.mul(groups, q, out=product).sum(0)
        scale = fit / q.square_().sum(0)
        explained = fit * scale
        better = explained > best  # never where it is not a number
        best = torch.where(better, explained, best)
        scales = torch.where(better, scale, scales)
    if bool((scales.abs() > LARGEST_SCALE).any()):
        raise CheckpointError(
            f"weights up to {float(extreme.abs().max()):.3g} need a scale that float16 cannot hold",
            hint="Keep them as they are: --keep 'PATTERN=none'.",
        )
    return scales.half().float()


def round_to(groups: Tensor, scales: Tensor, bits: int) -> Tensor:
    """Groups [G, M] in units of their scales [M]: integers in range, as float32; 0 for scale 0."""
    low, high = RANGES[bits]
    units = groups * torch.where(scales == 0, 0.0, 1 / scales)
    return units.round_().clamp_(low, high)


def dequantize(values: Tensor, scales: Tensor) -> Tensor:
    """values int8 [R, K], scales [R, K / G] -> the weights that they stand for, float32 [R, K]."""
    groups = values.float().view(*scales.shape, -1)
    return groups.mul_(scales[..., None]).view(values.shape)
