"""Fills the arrays of a step from tensors."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ingot.runtime.arrays import StepInputs


def fill(arrays: StepInputs, inputs: Mapping[str, Tensor]) -> None:
    """Fills the arrays of a step; tables that are narrower than theirs leave zeros."""
    for name, values in inputs.items():
        arrays[name][...] = 0
        arrays[name][tuple(map(slice, values.shape))] = values.numpy()
    sizes = (len(inputs[name]) for name in ("tokens", "spans", "logit_rows"))
    arrays.num_tokens, arrays.num_seqs, arrays.num_rows = sizes
