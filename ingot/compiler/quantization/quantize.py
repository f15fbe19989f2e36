"""Quantizes the matrices of a model into a temporary file, from which they are packed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor
from torch.fx import GraphModule

from ingot.compiler.quantization.calibrate import calibrate
from ingot.compiler.quantization.choose import is_outer, matrices
from ingot.compiler.quantization.search import quantize_rows
from ingot.compiler.quantization.store import QuantizedWeights
from ingot.compiler.reference import ReadParameter
from ingot.passes.storage import Storage

THREADS = 2
PIECES_AHEAD = 4
ELEMENTS_AT_ONCE = 4 << 20


def quantize_weights(
    gm: GraphModule,
    read: ReadParameter,
    weights: QuantizedWeights,
    storage: Mapping[str, Storage],
    sequences: Sequence[Sequence[int]] = (),
) -> None:
    """Fills `weights` with every matrix of `storage`.

    With calibration sequences, linears are rounded by GPTQ; the embedding, the head and, without
    sequences, everything by search. `gm` is the exported graph.
    """
    outer = {name for name, node in matrices(gm) if is_outer(gm, node)}
    with ThreadPoolExecutor(THREADS) as pool:
        for name, stored in storage.items():
            if not sequences or name in outer:
                weight = read(name)
                group = stored.group_of(weight.shape[1])
                pieces = _search(pool, weight, bits=stored.bits, group=group)
                weights.add(name, pieces, group=group)
    if sequences:
        calibrate(gm, weights, storage, sequences)


def _search(
    pool: ThreadPoolExecutor, weight: Tensor, *, bits: int, group: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Pieces of rows, quantized by several threads and in order."""
    running: deque[Future[tuple[Tensor, Tensor]]] = deque()
    for rows in row_pieces(weight):
        running.append(pool.submit(quantize_rows, rows, bits=bits, group=group))
        if len(running) > PIECES_AHEAD:
            yield running.popleft().result()
    while running:
        yield running.popleft().result()


def row_pieces(weight: Tensor) -> Iterable[Tensor]:
    """The rows of a matrix, a few million elements at a time."""
    return torch.split(weight, max(1, ELEMENTS_AT_ONCE // weight.shape[1]))
