"""Every value of a model, by the module that it comes from: what a plan is held against."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node

from ingot.compiler.lower import ROOT
from ingot.compiler.reference import Interpreter, ReadParameter
from ingot.passes.graph import origin


@dataclass(slots=True)
class ModelValues:
    """Values of all tokens of a step, [tokens, columns] in float32, or of all texts, by module
    path."""

    of_module: dict[str, list[tuple[str, Tensor]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def add(self, module: str, name: str, value: Tensor) -> None:
        self.of_module[module or ROOT].append((name, value))

    def near(self, module: str) -> Iterator[tuple[str, Tensor]]:
        """The values of a module and of those inside it, and then of the one around it."""
        yield from self.within(module)
        around = module.rpartition(".")[0]
        if around:
            yield from self.of_module.get(around, ())

    def like(self, module: str, part: Tensor, rows: Tensor | None) -> Iterator[tuple[str, Tensor]]:
        """The values near a module that have the shape of a part; those of tokens of some rows
        where these are given."""
        for name, value in self.near(module):
            if value.shape[1] == part.shape[1]:
                whole = rows is None or value.shape == part.shape
                chosen = value if whole else value[rows]
                if chosen.shape == part.shape:
                    yield name, chosen

    def within(self, module: str) -> Iterator[tuple[str, Tensor]]:
        for path, values in self.of_module.items():
            if module == ROOT or path == module or path.startswith(f"{module}."):
                yield from values


class _Noting(Interpreter):
    """Runs a graph and keeps what it computes."""

    def __init__(
        self, gm: GraphModule, read: ReadParameter, prompts: Sequence[Sequence[int]]
    ) -> None:
        super().__init__(gm, read, prompts)
        self.found = ModelValues()

    def _call(self, node: Node) -> list[Any]:
        (value,) = super()._call(node)
        rows = by_token(value, sum(self.lengths))
        if rows is None:  # pooled, if it is of all texts
            rows = by_token(value, len(self.lengths))
        if rows is not None:
            self.found.add(origin(node), node.name, rows)
        return [value]


def by_token(value: Any, length: int) -> Tensor | None:
    """A value as [tokens, columns]; None for one that is not of tokens, or no number.

    Heads may stand before the tokens.
    """
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.dim() < 2:
        return None
    if value.dim() == 4 and value.shape[1] != length and value.shape[2] == length:
        value = value.transpose(1, 2)
    if value.shape[0] != 1 or value.shape[1] != length:
        return None
    rows: Tensor = value[0].reshape(length, -1).float()
    return rows


def model_values(
    gm: GraphModule, read: ReadParameter, prompts: Sequence[Sequence[int]]
) -> ModelValues:
    """Runs the exported graph in float32 over the prompts; values of all of them, side by side."""
    noting = _Noting(gm, read, prompts)
    noting.run()
    return noting.found
