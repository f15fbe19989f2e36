"""Quantizes the matrices of a model into a temporary file; packing reads them from there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.fx import GraphModule

from ingot.artifact.formats import Storage
from ingot.compiler.quantization.calibrate import Calibrator
from ingot.compiler.quantization.choose import naming, outer_names
from ingot.compiler.quantization.search import quantize_rows
from ingot.compiler.quantization.store import QuantizedWeights
from ingot.ops.scaled import Scaled

ELEMENTS_AT_ONCE = 4 << 20


def quantize_weights(
    gm: GraphModule,
    weights: QuantizedWeights,
    storage: Mapping[str, Storage],
    sequences: Sequence[Sequence[int]] = (),
) -> None:
    """Fills `weights` with every matrix of `storage`.

    With calibration sequences, GPTQ rounds the linears, and search the embedding and the head.
    Without them, search rounds everything. `gm` is the exported graph.
    """
    outer = outer_names(gm)
    for name, stored in storage.items():
        if not sequences or name in outer:
            weight = weights.read(name)
            with naming(gm, name):
                weights.add(name, search(weight, stored))
    if sequences:
        Calibrator(gm, weights, storage, sequences).run()


def search(weight: Tensor, stored: Storage) -> Iterator[Scaled]:
    """Quantizes a matrix by search, in pieces of rows."""
    form = stored.of(weight.shape[1])
    for rows in torch.split(weight, max(1, ELEMENTS_AT_ONCE // weight.shape[1])):
        yield quantize_rows(rows, form)
