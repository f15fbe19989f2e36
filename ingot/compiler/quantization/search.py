"""The scale of every group that loses least: a few starts, each brought to its best scale.

For fixed integers q the scale that minimises |w - s q|^2 is s = <w, q> / <q, q>, and what is left
is |w|^2 - <w, q>^2 / <q, q>. So each start rounds the group once and is judged by the second term;
the winner's scale is rounded to what is stored, and the group is rounded anew with that. Starts put
the largest magnitude of the group at a level of its own: at -8 of int4, which reaches further than
7, so that scales of either sign occur.

Where groups share a block, the scale of each is stored as a multiplier of the block's: of a few
scales of the block that one is taken from which its groups' own deviate least, relative to them and
weighted by what the groups hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from ingot.artifact.formats import Format
from ingot.errors import CheckpointError
from ingot.ops.scaled import Scaled

RANGES = {8: (-127.0, 127.0), 4: (-8.0, 7.0)}
# Levels that the largest magnitude of a group is put at; beyond the range it is clipped.
STARTS = {8: (127.0, 126.0, 125.0, 124.0), 4: (-9.0, -8.5, -8.0, -7.5, -7.0, -6.5)}
# Multipliers that the largest scale of a block is put at; -8 is the largest there is.
LEVELS = (-8.4, -8.0, -7.6, -7.2, -6.8, -6.4, -6.0, -5.6, -5.2, -4.8)
MULTIPLIERS = (-8.0, 7.0)
# Elements that are worked on together: they stay in the cache.
AT_ONCE = 1 << 17
LARGEST_SCALE = 65504.0


def quantize_rows(rows: Tensor, form: Format) -> Scaled:
    """Rows [R, K] of any float dtype, quantized.

    Raises:
        CheckpointError: weights so large that float16 does not hold their scale.
    """
    num_rows, columns = rows.shape
    values = torch.empty(num_rows, columns, dtype=torch.int8)
    multipliers = torch.empty(num_rows, columns // form.group, dtype=torch.int8)
    scales = torch.empty(num_rows, columns // form.block)
    step = max(1, AT_ONCE // columns)
    with one_thread():
        for start in range(0, num_rows, step):
            part = slice(start, start + step)
            # Groups lie side by side: reductions over them run along vector registers.
            groups = rows[part].reshape(-1, form.group).T.float().contiguous()
            own = stored = best_scales(groups, bits=form.bits)
            if form.has_multipliers:
                each = form.block // form.group
                stored = block_scales(groups, own, each)
                shared = stored.repeat_interleave(each)
                factors = multipliers_of(own, shared)
                multipliers[part] = factors.view(-1, columns // form.group)
                own = factors * shared
            values[part] = round_to(groups, own, form.bits).T.reshape(-1, columns)
            scales[part] = stored.view(-1, columns // form.block)
    return Scaled(values, multipliers if form.has_multipliers else None, scales)


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
            hint="Keep them as they are.",
        )
    return scales.half().float()


def block_scales(groups: Tensor, scales: Tensor, num_groups: int) -> Tensor:
    """Groups [G, M] and their own scales [M] -> the scale of each block of `num_groups` of them,
    [M / num_groups], representable in float16."""
    energies = groups.square().sum(0).view(-1, num_groups)
    wanted = scales.view(-1, num_groups)
    extreme = wanted.gather(1, wanted.abs().argmax(1, keepdim=True))
    best, least = torch.zeros_like(extreme), torch.full_like(extreme, torch.inf)
    for level in LEVELS:
        scale = (extreme / level).half().float()
        reached = multipliers_of(wanted, scale) * scale
        off = (reached / torch.where(wanted == 0, 1.0, wanted) - 1).square_()
        loss = off.mul_(energies).sum(1, keepdim=True)
        best = torch.where(loss < least, scale, best)
        least = torch.minimum(loss, least)
    return best.flatten()


def multipliers_of(scales: Tensor, block_scales: Tensor) -> Tensor:
    """Scales in units of those of their blocks: integers in range, as float32; 0 only for 0."""
    units = scales * torch.where(block_scales == 0, 0.0, 1 / block_scales)
    return torch.where(units.abs() < 0.5, units.sign(), units.round().clamp_(*MULTIPLIERS))


def round_to(groups: Tensor, scales: Tensor, bits: int) -> Tensor:
    """Groups [G, M] in units of their scales [M]: integers in range, as float32; 0 for scale 0."""
    low, high = RANGES[bits]
    units = groups * torch.where(scales == 0, 0.0, 1 / scales)
    return units.round_().clamp_(low, high)
