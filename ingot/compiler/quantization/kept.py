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
    together: Sequence[Sequence[str]] = (),
) -> dict[str, Storage]:
    """Storage of each parameter that the checkpoint stores quantized, by its name: as it is, or the
    nearest one. Parameters that stand `together` become one matrix.

    Raises:
        CheckpointError: no storage holds the numbers of a matrix exactly, and none is near.
        UsageError: a target has no kernel for the storage of a matrix.
    """
    if options.dequantize:
        return {}
    found = {name: each.encoding.storage or each.nearest for name, each in quantized.items()}
    if lost := [name for name, storage in found.items() if storage is None]:
        label = quantized[lost[0]].encoding.label
        raise CheckpointError(
            f"no storage of an artifact holds the numbers of {listed(lost, 4)} exactly ({label})",
            hint=f"Give {DEQUANTIZE}, which reads the numbers that they stand for; --quantize int8 "
            "or int4 beside it stores these in integers anew.",
        )
    kept = {name: storage for name, storage in found.items() if storage is not None}
    for names in together:
        kept = _alike(kept, quantized, names)
    columns = {name: matrix.shape[-1] for name, matrix in quantized.items()}
    if refused := refused_storage(kept, columns, partial(all_fit, targets)):
        raise refused
    return kept


def _alike(
    kept: dict[str, Storage], quantized: Mapping[str, QuantizedTensor], names: Sequence[str]
) -> dict[str, Storage]:
    """The same, where those names are stored in one way if their checkpoint mixes several."""
    nearest = {name: quantized[name].nearest for name in names if name in kept}
    ways = {kept.get(name) for name in names}
    if None in ways:  # one is not quantized, so all are stored as numbers
        return {name: storage for name, storage in kept.items() if name not in nearest}
    if len(ways) == 1 or None in nearest.values():
        return kept
    return kept | {name: storage for name, storage in nearest.items() if storage is not None}


def holds(matrix: QuantizedTensor, storage: Storage) -> bool:
    """Returns whether a storage has exactly the numbers of a matrix."""
    own = matrix.encoding.storage
    return (
        own is not None and own.bits <= storage.bits and replace(own, bits=storage.bits) == storage
    )


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
