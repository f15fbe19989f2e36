"""How a quantized weight is stored, and which weights of a graph are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch.fx import GraphModule

from ingot.artifact.plan import DType
from ingot.passes.graph import arguments, op_calls

QUANTIZED_OPS = ("quantized_linear", "quantized_embedding")
SCALES_SUFFIX = "_scales"  # the scales of `x.weight` are `x.weight_scales`


@dataclass(frozen=True, slots=True)
class Storage:
    """Integers of so many bits; a float16 scale for every `group` columns, 0: for every row."""

    bits: int
    group: int

    @property
    def label(self) -> str:
        """`int4-g32`, `int8-channel`."""
        return f"int{self.bits}-" + (f"g{self.group}" if self.group else "channel")

    def group_of(self, columns: int) -> int:
        """Columns that share a scale, in a row of so many."""
        return self.group or columns


# How the model's parameter of that name is to be stored; None leaves it as it is.
Choose = Callable[[str], Storage | None]


def per_channel(name: str) -> Storage | None:
    """Everything in int8, one scale a row."""
    return Storage(8, 0)


@dataclass(frozen=True, slots=True)
class QuantizedPart:
    """What a parameter of a quantized graph holds: the integers of a weight, or its scales."""

    part: str  # "values" or "scales"
    bits: int
    group: int

    @property
    def dtype(self) -> DType:
        """What plans call it: scales are stored in float16, integers in their bits."""
        if self.part == "scales":
            return "float16"
        return "int4" if self.bits == 4 else "int8"

    def inside(self, name: str) -> str:
        """The weight that the scales of that name are stored in; "" for integers."""
        return name.removesuffix(SCALES_SUFFIX) if self.part == "scales" else ""


def quantized_parameters(gm: GraphModule) -> dict[str, QuantizedPart]:
    """The parameters that quantized ops read, by name."""
    return dict(_parts(gm))


def _parts(gm: GraphModule) -> Iterator[tuple[str, QuantizedPart]]:
    for node in op_calls(gm, *QUANTIZED_OPS):
        given = arguments(node)
        for part, name in (("values", "weight"), ("scales", "weight_scales")):
            if given[name].op == "get_attr":
                yield (
                    str(given[name].target),
                    QuantizedPart(part, bits=given["bits"], group=given["group"]),
                )
