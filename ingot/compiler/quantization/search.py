"""Searches the scale of every group that loses least, from a few starts.

For fixed integers q the scale that minimises |w - s q|^2 is s = <w, q> / <q, q>, and the error left
is |w|^2 - <w, q>^2 / <q, q>. So each start rounds the group once, and the start with the largest
second term wins. Its scale is rounded to the stored dtype, and the group is rounded anew with
that. A start puts the largest magnitude of the group at some level. For int4 that may be -8, which
reaches further than 7, so scales can have either sign.

If groups share a block, the scale of each is stored as a multiplier of the block's scale. The
search tries a few scales of the block. It takes the one from which the groups' own scales deviate
least, relative to these and weighted by the energy of the groups.

Where the inputs of a matrix are known, the square of an error counts as much as the mean square of
the input that it is multiplied with. Formats with zeros are searched in affine.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from ingot.artifact.formats import Format, Storage
from ingot.compiler.quantization.affine import affine
from ingot.compiler.quantization.found import RANGES, Found, refuse_huge
from ingot.compiler.torch_threads import torch_threads
from ingot.ops.scaled import Scaled, whole_parts

# Where starts put the largest magnitude of a group; what is beyond the range is clipped. In 8 bits
# errors of starts differ by chance, so many are tried, and clipping never pays.
STARTS = {
    8: tuple(127.0 - n for n in range(16)),
    6: (-34.0, -33.0, -32.0, -31.0, -30.0, -29.0),
    5: (-17.5, -16.75, -16.0, -15.25, -14.5, -13.75),
    4: (-9.0, -8.5, -8.0, -7.5, -7.0, -6.5),
}
# Where errors weigh differently, what weighs little may be clipped far.
WEIGHTED_STARTS = {
    8: STARTS[8],
    6: (*STARTS[6], -36.0, -39.0, -43.0, -48.0),
    5: (*STARTS[5], -18.5, -20.0, -22.5, -25.5, -29.0),
    4: (*STARTS[4], -10.0, -11.0, -12.5, -14.5, -17.0),
}
# The multipliers that the search gives to the largest scale of a block; -8 is the largest of all.
LEVELS = (-8.4, -8.0, -7.6, -7.2, -6.8, -6.4, -6.0, -5.6, -5.2, -4.8)
MULTIPLIERS = (-8.0, 7.0)
# Of an importance relative to the mean: what matters less still shall not drift at will, and what
# matters more shall not drown the rest of its group in sums of float32.
LEAST_WEIGHT, LARGEST_WEIGHT = 1e-4, 1e4
# Elements that are processed together, so that they stay in the cache.
AT_ONCE = 1 << 17
ELEMENTS_AT_ONCE = 4 << 20  # of a matrix that comes in pieces


def search(weight: Tensor, stored: Storage, importance: Tensor | None = None) -> Iterator[Scaled]:
    """Quantizes a matrix [O, K] in pieces of rows; `importance` is as in `quantize_rows`."""
    form = stored.of(weight.shape[1])
    for rows in torch.split(weight, max(1, ELEMENTS_AT_ONCE // weight.shape[1])):
        yield quantize_rows(rows, form, importance)


def quantize_rows(rows: Tensor, form: Format, importance: Tensor | None = None) -> Scaled:
    """Quantizes rows [..., R, K] of any float dtype.

    `importance` [K], finite and not negative, says how much the square of an error in a column
    counts: the mean square of its inputs. Without it all count alike.

    Raises:
        CheckpointError: weights are so large that float16 cannot hold their scale.
    """
    if rows.dim() > 2:
        return quantize_rows(rows.flatten(0, -2), form, importance).unflatten(rows.shape[:-1])
    num_rows, columns = rows.shape
    matrix = _unwritten(num_rows, columns, form)
    step = max(1, AT_ONCE // columns)
    weights = weights_of(importance, form, columns, min(step, num_rows))

    def found_at(start: int) -> Found:
        groups = side_by_side(rows[start : start + step], form)
        beside = None if weights is None else weights[:, : groups.shape[1]].contiguous()
        return search_groups(groups, beside, form)

    starts = range(0, num_rows, step)
    for start, found in zip(starts, _in_threads(found_at, starts), strict=True):
        part = slice(start, start + step)
        size = len(matrix.values[part])
        matrix.values[part] = found.integers.T.reshape(size, -1)[:, :columns]
        matrix.scales[part] = found.scales.view(size, -1)
        by_group = ((matrix.multipliers, found.multipliers), (matrix.zeros, found.zeros))
        for kept, given in by_group:
            if kept is not None and given is not None:
                kept[part] = given.view(size, -1)[:, : kept.shape[1]]
    return matrix


def _unwritten(rows: int, columns: int, form: Format) -> Scaled:
    """A matrix whose parts are to be written."""

    def integers(width: int) -> Tensor:
        return torch.empty(rows, width, dtype=torch.int8)

    groups = -(-columns // form.group)
    return Scaled(
        integers(columns),
        integers(groups) if form.has_multipliers else None,
        torch.empty(rows, form.blocks_of(columns)),
        integers(groups) if form.zeros else None,
        block=form.block,
        group=form.group,
    )


def _in_threads(work: Callable[[int], Found], starts: Sequence[int]) -> Iterator[Found]:
    """The results of work in their order, each made by one of as many threads as torch has."""
    is_inference = torch.is_inference_mode_enabled()

    def inside(start: int) -> Found:
        with torch.inference_mode(is_inference):
            return work(start)

    count = min(torch.get_num_threads(), len(starts))
    with torch_threads(1):
        if count == 1:
            yield from map(work, starts)
            return
        with ThreadPoolExecutor(count, "ingot-search") as pool:
            yield from pool.map(inside, starts)


def side_by_side(rows: Tensor, form: Format) -> Tensor:
    """Rows [R, K] -> their groups [G, M] float32, so that reductions over a group use vector
    registers; zeros fill up the last block of a row."""
    return whole_parts(rows, form.block).reshape(-1, form.group).T.float().contiguous()


def weights_of(
    importance: Tensor | None, form: Format, columns: int, num_rows: int
) -> Tensor | None:
    """What errors in the groups of so many rows [G, M] weigh, 0 where zeros fill up a block; None
    where all weigh the same, and no format needs to know what fills up."""
    if importance is None:
        if not form.zeros:
            return None
        importance = torch.ones(columns)
    mean = importance.float().mean()
    relative = importance.float() / mean if mean > 0 else torch.ones(columns)
    weights = side_by_side(relative.clamp(LEAST_WEIGHT, LARGEST_WEIGHT)[None], form)
    return weights.repeat(1, num_rows)


def search_groups(groups: Tensor, weights: Tensor | None, form: Format) -> Found:
    """Quantizes groups [G, M], those of a block one after the other; `weights` are theirs."""
    each = form.block // form.group
    if form.zeros:
        assert weights is not None
        return affine(groups, weights, form.bits, each if form.has_multipliers else 0)
    own = best_scales(groups, weights, bits=form.bits)
    if not form.has_multipliers:
        return Found(round_to(groups, own, form.bits), own)
    scales = block_scales(groups, own, each, weights)
    shared = scales.repeat_interleave(each)
    multipliers = multipliers_of(own, shared)
    return Found(round_to(groups, multipliers * shared, form.bits), scales, multipliers)


def best_scales(groups: Tensor, weights: Tensor | None = None, *, bits: int) -> Tensor:
    """Groups [G, M] -> the scale of each, float32 [M], exact in float16; 0 for a group of zeros.

    `weights` [G, M] say how much the squares of errors count.
    """
    low, high = RANGES[bits]
    largest, smallest = groups.amax(0), groups.amin(0)
    extreme = torch.where(largest >= -smallest, largest, smallest)
    inverse = torch.where(extreme == 0, 0.0, 1 / extreme)
    weighted = groups
    if weights is not None:
        # Before products of them overflow.
        refuse_huge(torch.where(extreme.isfinite(), extreme, 0.0) / low, extreme)
        weighted = groups * weights
    best, scales = torch.zeros_like(extreme), torch.zeros_like(extreme)
    q, product = torch.empty_like(groups), torch.empty_like(groups)
    for start in (STARTS if weights is None else WEIGHTED_STARTS)[bits]:
        torch.mul(groups, inverse * start, out=q).round_().clamp_(low, high)
        fit = torch.mul(weighted, q, out=product).sum(0)
        squares = q.square_() if weights is None else q.square_().mul_(weights)
        scale = fit / squares.sum(0)
        explained = fit * scale
        better = explained > best  # false for NaN
        best = torch.where(better, explained, best)
        scales = torch.where(better, scale, scales)
    refuse_huge(scales, extreme)
    return scales.half().float()


def block_scales(
    groups: Tensor, scales: Tensor, num_groups: int, weights: Tensor | None = None
) -> Tensor:
    """Groups [G, M] and their own scales [M] -> the scale of each block of `num_groups` groups,
    [M / num_groups], exact in float16."""
    squares = groups.square() if weights is None else groups.square().mul_(weights)
    energies = squares.sum(0).view(-1, num_groups)
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
