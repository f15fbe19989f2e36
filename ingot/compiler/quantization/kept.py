"""Storage of matrices that a checkpoint stores quantized: as they are, number for number.

No torch, so that `explain` tells it as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from ingot.artifact.formats import Storage
from ingot.artifact.target import Target
from ingot.compiler.options import CompileOptions
from ingot.compiler.quantization.storage import DEQUANTIZE, Fits, last_words, misfits
from ingot.errors import CheckpointError, UsageError, listed
from ingot.models.checkpoints.formats.quantized import QuantizedTensor
from ingot.targets.target import all_fit


def kept_storage(
    quantized: Mapping[str, QuantizedTensor],
    options: CompileOptions,
    targets: Sequence[Target],
    fits: Fits | None = None,
) -> dict[str, Storage]:
    """Storage of each parameter that the checkpoint stores quantized, by its name: as it is, or,
    where a target has no kernel for that, in wider integers, or the nearest one. `fits` says which
    formats products take; None: those that all targets take.

    Raises:
        CheckpointError: no storage holds the numbers of a matrix exactly, and none is near.
        UsageError: a target has no kernel for the storage of a matrix.
    """
    if options.dequantize:
        return {}
    fits = fits or partial(all_fit, targets)
    found = {name: _stored(each, fits) for name, each in quantized.items()}
    if lost := [name for name, storage in found.items() if storage is None]:
        label = quantized[lost[0]].encoding.label
        raise CheckpointError(
            f"no storage of an artifact holds the numbers of {listed(lost, 4)} exactly ({label})",
            hint=f"Give {DEQUANTIZE}, which reads the numbers that they stand for; --quantize int8 "
            "or int4 beside it stores these in integers anew.",
        )
    kept = {name: storage for name, storage in found.items() if storage is not None}
    columns = {name: matrix.shape[-1] for name, matrix in quantized.items()}
    if refused := refused_storage(kept, columns, fits):
        raise refused
    return kept


def _stored(matrix: QuantizedTensor, fits: Fits) -> Storage | None:
    """The first of the ways to store a matrix that products take; of none the matrix's own."""
    columns = matrix.shape[-1]
    ways = [*_exact(matrix), *([matrix.nearest] if matrix.nearest else [])]
    fitting = (way for way in ways if fits(columns, way.of(columns)))
    return next(fitting, ways[0] if ways else None)


def _exact(matrix: QuantizedTensor) -> tuple[Storage, ...]:
    """The ways to store exactly the numbers of a matrix: its own, and int8 for what is a byte
    times a scale."""
    own = matrix.encoding.storage
    if own is None:
        return ()
    if own.multipliers or own.minimums:
        return (own,)
    return tuple(dict.fromkeys((own, replace(own, bits=8, codes=False))))


def holds(matrix: QuantizedTensor, storage: Storage) -> bool:
    """Returns whether a storage has exactly the numbers of a matrix."""
    return storage in _exact(matrix)


def refused_storage(
    kept: Mapping[str, Storage], columns: Mapping[str, int], fits: Fits
) -> UsageError | None:
    """The error that names the matrices whose integers no kernel takes as they are."""
    wrong = misfits(kept, columns, fits)
    if not wrong:
        return None
    form = kept[wrong[0]].of(columns[wrong[0]])
    return UsageError(
        f"no kernel takes {', '.join(last_words(wrong))} in {form}, as the checkpoint has them",
        hint=f"Give {DEQUANTIZE}, or another --target.",
    )


def stored_already(
    quantized: Mapping[str, QuantizedTensor], storage: Mapping[str, Storage]
) -> tuple[str, ...]:
    """Describes how matrices that a checkpoint stores quantized are stored, a text for each way.

    `storage` says how matrices are stored; one that is not as its checkpoint has it is dequantized.
    """
    found: dict[str, list[str]] = {}
    for name, matrix in quantized.items():
        stored = storage.get(name)
        exact = stored is not None and holds(matrix, stored)
        kept = f"{'kept as' if exact else 'rounded to'} {stored.label}" if stored else "dequantized"
        found.setdefault(f"in {matrix.encoding.label}, {kept}", []).append(name)
    return tuple(
        f"{len(names)} matrices {way}: {', '.join(last_words(names))}"
        for way, names in found.items()
    )
