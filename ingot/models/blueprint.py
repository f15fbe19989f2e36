"""What modules are made of: their parts, and the names and shapes of their parameters. No torch.

Shapes are stated here alone: the blocks make the parameters of these blueprints. So the size of a
model, and whether a checkpoint fits it, can be told without building it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """A module before it is built.

    Attributes:
        shapes: its own parameters.
        constants: its buffers whose values follow from the config.
        parts: the modules in it, in the order in which they run.
        stacked: the linears among them that read the same rows; the compiler makes one of them.
        multiplied: rows are multiplied with its weight.
        outer: it is an embedding or the head.
    """

    shapes: Mapping[str, Shape] = field(default_factory=dict)
    constants: Mapping[str, Shape] = field(default_factory=dict)
    parts: Mapping[str, Blueprint] = field(default_factory=dict)
    stacked: tuple[str, ...] = ()
    multiplied: bool = False
    outer: bool = False

    def modules(self, path: str = "") -> Iterator[tuple[str, Blueprint]]:
        """This module and all below it, by their dotted paths."""
        yield path, self
        for name, part in self.parts.items():
            yield from part.modules(f"{path}.{name}" if path else name)

    @property
    def parameters(self) -> dict[str, Shape]:
        """Every parameter by its dotted name."""
        return {
            f"{path}.{name}" if path else name: shape
            for path, part in self.modules()
            for name, shape in part.shapes.items()
        }


def linear(columns: int, rows: int, *, bias: bool = False, outer: bool = False) -> Blueprint:
    """A product with a matrix [rows, columns]."""
    shapes: dict[str, Shape] = {"weight": (rows, columns)}
    return Blueprint(
        shapes=shapes | ({"bias": (rows,)} if bias else {}), multiplied=True, outer=outer
    )


def embedding(rows: int, width: int, *, multiplied: bool = False) -> Blueprint:
    """A table of rows; of a tied one the head is a product with it."""
    return Blueprint(shapes={"weight": (rows, width)}, multiplied=multiplied, outer=True)


def rms_norm(*sizes: int) -> Blueprint:
    """A norm with a weight of those sizes, over the last of them."""
    return Blueprint(shapes={"weight": sizes})


def layer_norm(*sizes: int, bias: bool = True) -> Blueprint:
    """The same with, mostly, a bias."""
    return Blueprint(shapes={"weight": sizes} | ({"bias": sizes} if bias else {}))
