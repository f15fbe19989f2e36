"""GPTQ: rounds a matrix column by column; later columns make up for each error.

Frantar, Ashkboos, Hoefler, Alistarh: "GPTQ: Accurate Post-Training Quantization for Generative
Pre-trained Transformers" (2022), algorithm 1. Let H be the second moments of the layer's inputs,
and U the upper Cholesky factor of the inverse of H. The error of column i, divided by U[i, i], is
subtracted from the columns after it in proportion to U[i, :]. Scales are searched at their first
column: the scale of a block, then the multiplier of each of its groups; or, where there are zeros,
all of a block at its first column.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.artifact.formats import Format
from ingot.compiler.quantization.affine import round_to_grid
from ingot.compiler.quantization.search import (
    best_scales,
    multipliers_of,
    round_to,
    search_groups,
    side_by_side,
    weights_of,
)
from ingot.compiler.torch_threads import torch_threads
from ingot.errors import CompileError
from ingot.ops.scaled import Scaled

COLUMNS_AT_ONCE = 128  # one matrix product carries their errors to the columns after them
DAMPING = 0.01  # of the mean diagonal: the paper's
ATTEMPTS = 6  # each with ten times the damping


def gptq(weight: Tensor, factor: Tensor, form: Format, importance: Tensor | None = None) -> Scaled:
    """Rounds weight [O, K] so that its products with the calibration's inputs change least.

    Args:
        weight: any float dtype; not changed.
        factor: `inverse_factor` of the inputs.
        importance: mean squares of the inputs, which weigh errors in the search for scales.
    """
    left = weight.float().T.contiguous()  # [K, O]: a column of the weight is a row here
    columns, outputs = left.shape
    values = torch.empty(columns, outputs, dtype=torch.int8)
    grids = _Grids(form, columns, outputs, importance)
    for start in range(0, columns, COLUMNS_AT_ONCE):
        stop = min(start + COLUMNS_AT_ONCE, columns)
        errors = torch.empty(stop - start, outputs)
        with torch_threads(1):
            for i in range(start, stop):
                grids.reach(i, left[i:])
                values[i], stands_for = grids.rounded(i, left[i])
                error = errors[i - start] = (left[i] - stands_for) / factor[i, i]
                left[i + 1 : stop].addr_(factor[i, i + 1 : stop], error, alpha=-1)
        left[stop:].addmm_(factor[start:stop, stop:].T, errors, alpha=-1)
    return grids.around(values.T.contiguous())


class _Grids:
    """Scales [blocks, O], and multipliers and zeros [groups, O], that are known up to a column."""

    def __init__(self, form: Format, columns: int, outputs: int, importance: Tensor | None) -> None:
        self.form = form
        weights = weights_of(importance, form, columns, 1)
        self.weights = None if weights is None else weights.T.flatten()  # a row that fills blocks
        num_groups = -(-columns // form.group)
        self.scales = torch.empty(form.blocks_of(columns), outputs)
        self.multipliers = torch.ones(num_groups, outputs, dtype=torch.int8)
        self.zeros = torch.zeros(num_groups, outputs, dtype=torch.int8)

    def reach(self, column: int, left: Tensor) -> None:
        """Searches what is first needed at a column; `left` is it and all after it [.., O]."""
        form = self.form
        if column % form.block == 0:
            self._search_block(column, left[: form.block].T)
        if column % form.group == 0 and form.has_multipliers and not form.zeros:
            weights, group = self._weights(column, form.group), left[: form.group]
            if weights is not None:
                weights = weights[: len(group), None].expand(group.shape)
            own = best_scales(group, weights, bits=form.bits)
            shared = self.scales[column // form.block]
            self.multipliers[column // form.group] = multipliers_of(own, shared)

    def _search_block(self, column: int, rows: Tensor) -> None:
        """Searches the scale of a block of every output [O, B], and its zeros."""
        form, outputs = self.form, len(rows)
        weights = self._weights(column, form.block)
        if weights is not None:
            weights = side_by_side(weights[None], form).repeat(1, outputs)
        found = search_groups(side_by_side(rows, form), weights, form)
        self.scales[column // form.block] = found.scales
        if not form.zeros:  # multipliers wait for the errors of the columns before them
            return
        first = column // form.group
        for kept, of_groups in ((self.multipliers, found.multipliers), (self.zeros, found.zeros)):
            if of_groups is not None:
                part = kept[first : first + form.block // form.group]
                part[:] = of_groups.view(outputs, -1).T[: len(part)]

    def _weights(self, column: int, count: int) -> Tensor | None:
        """What errors in so many columns weigh, 0 beyond the end of a row."""
        return None if self.weights is None else self.weights[column : column + count]

    def rounded(self, column: int, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Numbers of a column [O] -> their integers, and what these stand for."""
        form = self.form
        scale, group = self.scales[column // form.block], column // form.group
        multiplier, zero = self.multipliers[group], self.zeros[group]
        if form.zeros:
            values = round_to_grid(numbers, scale, multiplier, zero, form.bits)
            return values, (values * multiplier - zero) * scale
        own = scale * multiplier
        values = round_to(numbers, own, form.bits)
        return values, values * own

    def around(self, values: Tensor) -> Scaled:
        """Integers [O, K] with all of these."""
        form = self.form
        return Scaled(
            values,
            self.multipliers.T.contiguous() if form.has_multipliers else None,
            self.scales.T.contiguous(),
            self.zeros.T.contiguous() if form.zeros else None,
            block=form.block,
            group=form.group,
        )


def second_moments(rows: Tensor) -> Tensor:
    """Inputs [T, K] float32 -> the means of their products in pairs [K, K]."""
    moments: Tensor = rows.T @ rows
    return moments.div_(max(1, len(rows)))


def inverse_factor(moments: Tensor) -> Tensor:
    """Second moments [K, K] -> U, upper triangular; U^T U is the inverse of the damped moments.

    An input that is always zero has no influence on the others and is rounded by itself.

    Raises:
        CompileError: the moments cannot come from finite inputs.
    """
    diagonal = moments.diagonal()
    dead = diagonal == 0
    damping = DAMPING * float(diagonal.mean()) or 1.0
    for attempt in range(ATTEMPTS):
        damped = moments + torch.diag(damping * 10**attempt + dead * float(diagonal.mean()))
        lower, failed = torch.linalg.cholesky_ex(damped)
        if failed:
            continue
        inverse = torch.cholesky_inverse(lower)
        upper: Tensor
        upper, failed = torch.linalg.cholesky_ex(inverse, upper=True)
        if not failed and bool(upper.isfinite().all()):
            return upper
    raise CompileError(
        "the activations of the calibration text cannot be used: they are too large or not finite",
        hint="Compile without --calibrate, or check the model in float32.",
    )
