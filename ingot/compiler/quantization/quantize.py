"""Quantizes the matrices of a model into a temporary file; packing reads them from there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch.fx import GraphModule

from ingot.artifact.formats import Storage
from ingot.compiler.quantization.calibrate import Calibrator
from ingot.compiler.quantization.graph_matrices import EMBEDDING, matrix_nodes, naming
from ingot.compiler.quantization.search import ELEMENTS_AT_ONCE, search
from ingot.compiler.quantization.store import WHOLE, QuantizedWeights
from ingot.ops.scaled import Scaled
from ingot.ops.stacks import matrix_name

ROWS_OF_A_WORD = 32  # at most: pieces that begin with one are read without their neighbours


@dataclass(frozen=True, slots=True)
class KeptIntegers:
    """The integers of a checkpoint that are stored as they are.

    Attributes:
        storage: how each parameter is stored.
        read: rows start..stop of one.
        shape: of one.
    """

    storage: Mapping[str, Storage]
    read: Callable[[str, int, int], Scaled]
    shape: Callable[[str], tuple[int, ...]]

    def add_to(self, weights: QuantizedWeights, name: str) -> None:
        """Adds a parameter, or each matrix of a stack."""
        stored = self.storage[name]
        bits = WHOLE if stored.codes else stored.bits  # codes come as what they stand for
        count, *matrix = self.shape(name)
        if len(matrix) == 1:
            return weights.add(name, bits, self.pieces(name))
        for index in range(count):
            weights.add(matrix_name(name, index), bits, [self.read(name, index, index + 1)[0]])

    def pieces(self, name: str) -> Iterator[Scaled]:
        """A matrix in pieces of rows."""
        rows, *rest = self.shape(name)
        step = max(1, ELEMENTS_AT_ONCE // math.prod(rest))
        if step > ROWS_OF_A_WORD:
            step -= step % ROWS_OF_A_WORD
        for start in range(0, rows, step):
            yield self.read(name, start, min(start + step, rows))


def quantize_weights(
    gm: GraphModule,
    weights: QuantizedWeights,
    storage: Mapping[str, Storage],
    sequences: Sequence[Sequence[int]] = (),
    kept: KeptIntegers | None = None,
    sample: Sequence[Sequence[int]] = (),
) -> None:
    """Fills `weights` with every matrix of `storage`.

    Those that `kept` stores in the same way come from there, integer for integer. With calibration
    sequences, GPTQ rounds the linears, and search the head. With a sample of text alone, search
    rounds both, for the inputs that the sample gives. An embedding that is no head, and everything
    without either, is rounded by search as if all columns were alike. `gm` is the exported graph.
    """
    multiplied = {name for name, node in matrix_nodes(gm) if node.target is not EMBEDDING}
    text = sequences or sample
    for name, stored in storage.items():
        if kept and kept.storage.get(name) == stored:
            weights.on_read(name)
            kept.add_to(weights, name)
        elif not text or name not in multiplied:
            for each in matrices_of(gm, name):
                weight = weights.read(each)
                with naming(gm, name):
                    weights.add(each, stored.bits, search(weight, stored))
    if any(each not in weights for name in storage for each in matrices_of(gm, name)):
        Calibrator(gm, weights, storage, text, by_gptq=bool(sequences)).run()


def matrices_of(gm: GraphModule, name: str) -> Iterator[str]:
    """The names under which a parameter is read: its own, or those of the matrices of a stack."""
    shape = gm.get_parameter(name).shape
    if len(shape) == 2:
        yield name
    else:
        yield from (matrix_name(name, index) for index in range(shape[0]))
