"""The bits of each matrix as a picture: a line for each kind of matrix, a place for each layer."""

from __future__ import annotations

from dataclasses import dataclass

from ingot.artifact.matrices import NUMBER
from ingot.artifact.plan import Buffer, Plan
from ingot.artifact.traits import traits_of

PLAIN = "-"  # a matrix that is stored in no integers
FINE = "^"  # its rows have 16 bits


@dataclass(frozen=True, slots=True, kw_only=True)
class BitsByLayer:
    """The matrices of one name, but for the number of their layer.

    Attributes:
        name: with * for the number.
        bits: of each layer, 0 where its matrix is in no integers.
        fine: of each layer, whether the matrix multiplies rows of 16 bits.
    """

    name: str
    bits: tuple[int, ...]
    fine: tuple[bool, ...]

    @property
    def lines(self) -> tuple[str, str]:
        """`5546-`, and a mark below each layer whose rows are fine; empty if none are."""
        marks = "".join(FINE if fine else " " for fine in self.fine).rstrip()
        return "".join(str(bits) if bits else PLAIN for bits in self.bits), marks


def bits_by_layer(plan: Plan) -> tuple[BitsByLayer, ...]:
    """The matrices of layers by kind; none where all layers of every kind are alike."""
    kinds: dict[str, list[Buffer]] = {}
    for weight in plan.of_kind("weight"):
        if len(weight.shape) > 1 and len(NUMBER.findall(weight.name)) == 1:
            name = NUMBER.sub("*", weight.name).removesuffix(".weight")
            kinds.setdefault(name, []).append(weight)
    rows = _rows(plan)
    found = tuple(
        BitsByLayer(
            name=name,
            bits=tuple(w.format.bits if w.format.is_scaled else 0 for w in weights),
            fine=tuple(rows.get(w.name) == "int16" for w in weights),
        )
        for name, weights in kinds.items()
    )
    differ = any(len({*zip(each.bits, each.fine, strict=True)}) > 1 for each in found)
    return found if differ else ()


def _rows(plan: Plan) -> dict[str, str]:
    """The dtype of the rows that each matrix multiplies, by its name."""
    multiplied = ((i, traits_of(i)) for i in plan.instructions if traits_of(i).matrix)
    return {
        i.inputs[traits.matrix]: plan.buffer(i.inputs[traits.multiplied]).dtype
        for i, traits in multiplied
    }
