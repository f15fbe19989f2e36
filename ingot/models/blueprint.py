"""Blueprints of modules: their parts, and the names and shapes of their parameters. No torch.

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
        stacked: groups of linears among them that read the same rows; the compiler makes one of
            each group.
        multiplied: rows are multiplied with its weight.
        plain: its weight is never stored in integers.
        outer: it is an embedding or the head.
        exact: its weights stay float32 however the others are stored.
        picks: so many of its experts compute a token; 0: it has none.
    """

    shapes: Mapping[str, Shape] = field(default_factory=dict)
    constants: Mapping[str, Shape] = field(default_factory=dict)
    parts: Mapping[str, Blueprint] = field(default_factory=dict)
    stacked: tuple[tuple[str, ...], ...] = ()
    multiplied: bool = False
    plain: bool = False
    outer: bool = False
    exact: bool = False
    picks: int = 0

    def modules(self, path: str = "") -> Iterator[tuple[str, Blueprint]]:
        """This module and all below it, by their dotted paths."""
        yield path, self
        for name, part in self.parts.items():
            yield from part.modules(f"{path}.{name}" if path else name)

    @property
    def together(self) -> list[tuple[str, ...]]:
        """The matrices that the compiler makes one of, by their dotted names."""
        return [
            tuple(f"{path}.{name}.weight" for name in names)
            for path, part in self.modules()
            for names in part.stacked
        ]

    @property
    def parameters(self) -> dict[str, Shape]:
        """Every parameter by its dotted name."""
        return {
            f"{path}.{name}" if path else name: shape
            for path, part in self.modules()
            for name, shape in part.shapes.items()
        }


def linear(
    columns: int, rows: int, *, bias: bool = False, outer: bool = False, exact: bool = False
) -> Blueprint:
    """A product with a matrix [rows, columns]."""
    shapes: dict[str, Shape] = {"weight": (rows, columns)}
    shapes |= {"bias": (rows,)} if bias else {}
    return Blueprint(shapes=shapes, multiplied=True, outer=outer, exact=exact)


def head_linear(heads: int, columns: int, rows: int) -> Blueprint:
    """A product of each head with a matrix [rows, columns] of its own."""
    return Blueprint(shapes={"weight": (heads * rows, columns)}, multiplied=True, plain=True)


def embedding(rows: int, width: int, *, multiplied: bool = False) -> Blueprint:
    """A table of rows; of a tied one the head is a product with it."""
    return Blueprint(shapes={"weight": (rows, width)}, multiplied=multiplied, outer=True)


def rms_norm(size: int) -> Blueprint:
    """A norm with a weight."""
    return Blueprint(shapes={"weight": (size,)})


def layer_norm(size: int, *, bias: bool = True) -> Blueprint:
    """A norm with a weight and, mostly, a bias."""
    return Blueprint(shapes={"weight": (size,)} | ({"bias": (size,)} if bias else {}))
