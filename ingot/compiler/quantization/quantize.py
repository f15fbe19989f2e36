"""Quantizes the matrices of a model into a temporary file; packing reads them from there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch.fx import GraphModule

from ingot.artifact.formats import Storage
from ingot.compiler.quantization.calibrate import Calibrator
from ingot.compiler.quantization.choose import naming, outer_names
from ingot.compiler.quantization.search import search
from ingot.compiler.quantization.store import QuantizedWeights
from ingot.ops.stacks import matrix_name


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
            for each in matrices_of(gm, name):
                weight = weights.read(each)
                with naming(gm, name):
                    weights.add(each, search(weight, stored))
    if sequences:
        Calibrator(gm, weights, storage, sequences).run()


def matrices_of(gm: GraphModule, name: str) -> Iterator[str]:
    """The names under which a parameter is read: its own, or those of the matrices of a stack."""
    shape = gm.get_parameter(name).shape
    if len(shape) == 2:
        yield name
    else:
        yield from (matrix_name(name, index) for index in range(shape[0]))
