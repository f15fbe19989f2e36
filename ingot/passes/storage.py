"""How a quantized weight is stored, and which weights of a graph are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch.fx import GraphModule

from ingot.artifact.formats import Storage
from ingot.artifact.plan import DType
from ingot.ops import OPS
from ingot.passes.graph import arguments, op_calls

QUANTIZED_OPS = tuple(
    name for name, op in OPS.items() if "weight_scales" in op.signature.parameters
)
# Beside the integers of `x.weight` lie `x.weight_multipliers` and `x.weight_scales`.
MULTIPLIERS_SUFFIX, SCALES_SUFFIX = "_multipliers", "_scales"


# How the model's parameter of that name is to be stored; None leaves it as it is.
Choose = Callable[[str], Storage | None]


def per_channel(name: str) -> Storage | None:
    """Everything in int8, one scale a row."""
    return Storage(8, 0)


@dataclass(frozen=True, slots=True)
class QuantizedPart:
    """What a parameter of a quantized graph holds of a weight."""

    part: str  # "values", "multipliers" or "scales"
    bits: int
    group: int
    block: int

    @property
    def dtype(self) -> DType:
        """What plans call it: scales are stored in float16, integers in their bits."""
        if self.part == "scales":
            return "float16"
        return "int4" if self.bits == 4 else "int8"

    def inside(self, name: str) -> str:
        """The weight that the multipliers or scales of that name are stored in; "" for values."""
        if self.part == "values":
            return ""
        return name.removesuffix(SCALES_SUFFIX).removesuffix(MULTIPLIERS_SUFFIX)


def quantized_parameters(gm: GraphModule) -> dict[str, QuantizedPart]:
    """The parameters that quantized ops read, by name."""
    return dict(_parts(gm))


def _parts(gm: GraphModule) -> Iterator[tuple[str, QuantizedPart]]:
    parts = {
        "values": "weight",
        "multipliers": "weight_multipliers",
        "scales": "weight_scales",
    }
    for node in op_calls(gm, *QUANTIZED_OPS):
        given = arguments(node)
        for part, argument in parts.items():
            parameter = given[argument]
            if parameter is not None and parameter.op == "get_attr":
                spans = {name: given[name] for name in ("bits", "group", "block")}
                yield str(parameter.target), QuantizedPart(part, **spans)
