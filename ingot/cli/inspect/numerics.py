"""Describes how an artifact's numbers are stored, and in what it differs from the reference."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ingot.artifact.manifest import AS_STORED, LedgerEntry, Manifest
from ingot.artifact.plan import Buffer, Plan
from ingot.artifact.traits import traits_of

NUMBER = re.compile(r"\b\d+\b")
SHOWN = 4
# What the compiler does that changes no meaning, but the last bits.
REORDERED = "Sums are added in another order than PyTorch adds them; this changes the last bits."


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAs:
    """The weights of one format: how many tensors, their bytes, and names with * for layers."""

    format: str
    tensors: int
    nbytes: int
    names: tuple[str, ...]

    @property
    def some(self) -> str:
        """Names to show, and how many more there are."""
        more = len(self.names) - SHOWN
        return ", ".join(self.names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericDifference:
    """One way in which an artifact is not the float32 reference; `tier` is "exact" where only the
    last bits can differ, or "numeric"."""

    what: str
    tier: str


def weight_formats(plan: Plan) -> tuple[StoredAs, ...]:
    """Formats of the weights, the one with the most bytes first."""
    found: dict[str, list[Buffer]] = {}
    for buffer in plan.of_kind("weight"):
        found.setdefault(str(buffer.format), []).append(buffer)
    return tuple(sorted((_stored(*item) for item in found.items()), key=lambda each: -each.nbytes))


def differences(manifest: Manifest, plan: Plan) -> tuple[NumericDifference, ...]:
    """Lists differences of the artifact from the reference: its module in float32, in PyTorch."""
    said = [_weights(manifest, plan), _activations(manifest, plan), _rounded(plan), _cache(plan)]
    numeric = (NumericDifference(what=what, tier="numeric") for what in said if what)
    return (*numeric, NumericDifference(what=REORDERED, tier="exact"))


def ways(ledger: Iterable[LedgerEntry]) -> tuple[str, ...]:
    """The passes that had something to do and may move numbers."""
    return tuple(each.name for each in ledger if each.tier == "numeric" and each.matched)


def _weights(manifest: Manifest, plan: Plan) -> str:
    formats = weight_formats(plan)
    narrow = [f"{each.tensors} to {each.format}" for each in formats if each.format != "float32"]
    if not narrow:
        return ""
    kept = sum(each.tensors for each in formats if each.format == "float32")
    rest = f", and {kept} stay float32" if kept else ""
    how = "are rounded when they are packed"
    if manifest.numerics.quantization.endswith(AS_STORED):
        how = "have the integers of the checkpoint, or are rounded when they are packed"
    return f"Tensors of weights {how}: {', '.join(narrow)}{rest}."


def _activations(manifest: Manifest, plan: Plan) -> str:
    dtype = manifest.numerics.dtype
    if dtype == "float32":
        return ""
    made = [name for i in plan.instructions for name in i.outputs.values()]
    narrow = sum(plan.buffer(name).dtype == dtype for name in made)
    by = ", ".join(ways(manifest.ledger_of(manifest.main))) or "lower_dtypes"
    return (
        f"Of {len(made)} results of instructions {narrow} are rounded to {dtype} (by {by}); "
        "kernels add in float32."
    )


def _rounded(plan: Plan) -> str:
    made = [plan.buffer(name) for i in plan.instructions for name in i.outputs.values()]
    if not any(buffer.format.is_scaled for buffer in made):
        return ""
    read = (i.inputs[traits_of(i).multiplied] for i in plan.instructions if traits_of(i).matrix)
    counts = Counter(plan.buffer(n).dtype for n in read if plan.buffer(n).format.is_scaled)
    how = " and ".join(f"to {dtype} before {count}" for dtype, count in sorted(counts.items()))
    return (
        f"Activations are rounded {how} products with integer weights, with a scale for each block "
        "of a row."
    )


def _cache(plan: Plan) -> str:
    if plan.kv_dtype in ("", "float32"):
        return ""
    scaled = any(state.format.is_scaled for state in plan.spec.states)
    how = ", with a scale for each head" if scaled else ""
    return f"Keys and values are kept in {plan.kv_dtype}{how}."


def _stored(name: str, buffers: list[Buffer]) -> StoredAs:
    sizes = (each.format.nbytes([*map(int, each.shape)]) for each in buffers)
    names = dict.fromkeys(NUMBER.sub("*", buffer.name) for buffer in buffers)
    return StoredAs(format=name, tensors=len(buffers), nbytes=sum(sizes), names=tuple(names))
