"""Searches the scale of every group that loses least, from a few starts.

For fixed integers q the scale that minimises |w - s q|^2 is s = <w, q> / <q, q>, and the error left
is |w|^2 - <w, q>^2 / <q, q>. So each start rounds the group once, and the start with the largest
second term wins. Its scale is rounded to the stored dtype, and the group is rounded anew with
that. A start puts the largest magnitude of the group at some level. For int4 that may be -8, which
reaches further than 7, so scales can have either sign.

If groups share a block, the scale of each is stored as a multiplier of the block's scale. The
search tries a few scales of the block. It takes the one from which the groups' own scales deviate
least, relative to these and weighted by the energy of the groups.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ingot.artifact.formats import Format, Storage
from ingot.compiler.torch_threads import torch_threads
from ingot.errors import CheckpointError
from ingot.ops.scaled import Scaled, whole_parts

RANGES = {8: (-127.0, 127.0), 4: (-8.0, 7.0)}
# Where starts put the largest magnitude of a group; what is beyond the range is clipped.
STARTS = {8: (127.0, 126.0, 125.0, 124.0), 4: (-9.0, -8.5, -8.0, -7.5, -7.0, -6.5)}
# The multipliers that the search gives to the largest scale of a block; -8 is the largest of all.
LEVELS = (-8.4, -8.0, -7.6, -7.2, -6.8, -6.4, -6.0, -5.6, -5.2, -4.8)
MULTIPLIERS = (-8.0, 7.0)
# Elements that are processed together, so that they stay in the cache.
AT_ONCE = 1 << 17
LARGEST_SCALE = 65504.0
ELEMENTS_AT_ONCE = 4 << 20  # of a matrix that comes in pieces


def search(weight: Tensor, stored: Storage) -> Iterator[Scaled]:
    """Quantizes a matrix [O, K] in pieces of rows."""
    form = stored.of(weight.shape[1])
    for rows in torch.split(weight, max(1, ELEMENTS_AT_ONCE // weight.shape[1])):
        yield quantize_rows(rows, form)


def quantize_rows(rows: Tensor, form: Format) -> Scaled:
    """Quantizes rows [..., R, K] of any float dtype.

    Raises:
        CheckpointError: weights are so large that float16 cannot hold their scale.
    """
    if rows.dim() > 2:
        return quantize_rows(rows.flatten(0, -2), form).unflatten(rows.shape[:-1])
    num_rows, columns = rows.shape
    num_blocks, num_groups = form.blocks_of(columns), -(-columns // form.group)
    each = form.block // form.group
    values = torch.empty(num_rows, columns, dtype=torch.int8)
    multipliers = torch.empty(num_rows, num_groups, dtype=torch.int8)
    scales = torch.empty(num_rows, num_blocks)
    step = max(1, AT_ONCE // columns)
    with torch_threads(1):
        for start in range(0, num_rows, step):
            part = slice(start, start + step)
            # Zeros that fill up the last block change no scale.
            blocks = whole_parts(rows[part], form.block)
            # Groups lie side by side, so that reductions over them use vector registers.
            groups = blocks.reshape(-1, form.group).T.float().contiguous()
            own = stored = best_scales(groups, bits=form.bits)
            if form.has_multipliers:
                stored = block_scales(groups, own, each)
                shared = stored.repeat_interleave(each)
                factors = multipliers_of(own, shared)
                multipliers[part] = factors.view(len(blocks), -1)[:, :num_groups]
                own = factors * shared
            rounded = round_to(groups, own, form.bits).T
            values[part] = rounded.reshape(len(blocks), -1)[:, :columns]
            scales[part] = stored.view(len(blocks), -1)
    found = multipliers if form.has_multipliers else None
    return Scaled(values, found, scales, block=form.block, group=form.group)


def best_scales(groups: Tensor, *, bits: int) -> Tensor:
    """Groups [G, M] -> the scale of each, float32 [M], exact in float16; 0 for a group of zeros."""
    low, high = RANGES[bits]
    largest, smallest = groups.amax(0), groups.amin(0)
    extreme = torch.where(largest >= -smallest, largest, smallest)
    inverse = torch.where(extreme == 0, 0.0, 1 / extreme)
    best, scales = torch.zeros_like(extreme), torch.zeros_like(extreme)
    q, product = torch.empty_like(groups), torch.empty_like(groups)
    for start in STARTS[bits]:
        torch.mul(groups, inverse * start, out=q).round_().clamp_(low, high)
        fit = torch.mul(groups, q, out=product).sum(0)
        scale = fit / q.square_().sum(0)
        explained = fit * scale
        better = explained > best  # false for NaN
        best = torch.where(better, explained, best)
        scales = torch.where(better, scale, scales)
    if bool((scales.abs() > LARGEST_SCALE).any()):
        raise CheckpointError(
            f"weights up to {float(extreme.abs().max()):.3g} need a scale that float16 cannot hold",
            hint="Keep them as they are.",
        )
    return scales.half().float()


def block_scales(groups: Tensor, scales: Tensor, num_groups: int) -> Tensor:
    """Groups [G, M] and their own scales [M] -> the scale of each block of `num_groups` groups,
    [M / num_groups], exact in float16."""
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
    """Scales divided by those of their blocks: integers in range, as float32; 0 only for 0."""
    units = scales * torch.where(block_scales == 0, 0.0, 1 / block_scales)
    return torch.where(units.abs() <= 0.5, units.sign(), units.round().clamp_(*MULTIPLIERS))


def round_to(groups: Tensor, scales: Tensor, bits: int) -> Tensor:
    """Groups [G, M] divided by their scales [M]: integers in range, as float32; 0 for scale 0."""
    low, high = RANGES[bits]
    units = groups * torch.where(scales == 0, 0.0, 1 / scales)
    return units.round_().clamp_(low, high)
