"""GPTQ: rounds a matrix column by column; later columns make up for each error.

Frantar, Ashkboos, Hoefler, Alistarh: "GPTQ: Accurate Post-Training Quantization for Generative
Pre-trained Transformers" (2022), algorithm 1. Let H be the second moments of the layer's inputs,
and U the upper Cholesky factor of the inverse of H. The error of column i, divided by U[i, i], is
subtracted from the columns after it in proportion to U[i, :]. Scales are searched at their first
column: the scale of a block, then the multiplier of each of its groups.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.artifact.formats import Format
from ingot.compiler.quantization.search import (
    best_scales,
    block_scales,
    multipliers_of,
    round_to,
)
from ingot.compiler.torch_threads import torch_threads
from ingot.errors import CompileError
from ingot.ops.scaled import Scaled, whole_parts

COLUMNS_AT_ONCE = 128  # one matrix product carries their errors to the columns after them
DAMPING = 0.01  # of the mean diagonal: the paper's
ATTEMPTS = 6  # each with ten times the damping


def gptq(weight: Tensor, factor: Tensor, form: Format) -> Scaled:
    """Rounds weight [O, K] so that its products with the calibration's inputs change least.

    Args:
        weight: any float dtype; not changed.
        factor: `inverse_factor` of the inputs.
    """
    left = weight.float().T.contiguous()  # [K, O]: a column of the weight is a row here
    columns, outputs = left.shape
    values = torch.empty(columns, outputs, dtype=torch.int8)
    multipliers = torch.empty(-(-columns // form.group), outputs, dtype=torch.int8)
    scales = torch.empty(form.blocks_of(columns), outputs)
    for start in range(0, columns, COLUMNS_AT_ONCE):
        stop = min(start + COLUMNS_AT_ONCE, columns)
        errors = torch.empty(stop - start, outputs)
        with torch_threads(1):
            for i in range(start, stop):
                if i % form.block == 0:
                    shared = scales[i // form.block] = _block_scale(left[i:], form)
                if i % form.group == 0:
                    scale = shared
                    if form.has_multipliers:
                        own = best_scales(left[i : i + form.group], bits=form.bits)
                        factors = multipliers[i // form.group] = multipliers_of(own, shared)
                        scale = shared * factors
                rounded = round_to(left[i], scale, form.bits)
                values[i] = rounded
                error = errors[i - start] = (left[i] - rounded * scale) / factor[i, i]
                left[i + 1 : stop].addr_(factor[i, i + 1 : stop], error, alpha=-1)
        left[stop:].addmm_(factor[start:stop, stop:].T, errors, alpha=-1)
    return Scaled(
        values.T.contiguous(),
        multipliers.T.contiguous() if form.has_multipliers else None,
        scales.T.contiguous(),
        block=form.block,
        group=form.group,
    )


def _block_scale(left: Tensor, form: Format) -> Tensor:
    """The float16 scale of the block at the start of `left`, the columns [K, O] not yet rounded."""
    num_groups = form.block // form.group
    block = whole_parts(left[: form.block].T, form.block)
    # The groups of an output lie side by side.
    groups = block.reshape(-1, form.group).T.contiguous()
    own = best_scales(groups, bits=form.bits)
    return block_scales(groups, own, num_groups) if form.has_multipliers else own


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
