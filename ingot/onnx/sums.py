"""Products whose sums float16 does not hold: they stay in float32, as few as there are."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx import GraphModule, Node

from ingot.compiler.reference import Interpreter, ReadParameter

# Half of the largest number of float16: other texts than those that are run go further.
LIMIT = torch.finfo(torch.float16).max / 2


def wide_products(
    graph: GraphModule, read: ReadParameter, prompts: Sequence[Sequence[int]]
) -> tuple[str, ...]:
    """The names of the matrices that are multiplied with, or give, numbers too large for float16
    somewhere in these prompts, in the order of the graph."""
    sums = _Sums(graph, read, prompts)
    sums.run()
    return tuple(dict.fromkeys(sums.wide))


class _Sums(Interpreter):
    """The float32 reference, which looks at what products are made of and give."""

    def __init__(
        self, graph: GraphModule, read: ReadParameter, prompts: Sequence[Sequence[int]]
    ) -> None:
        super().__init__(graph, read, prompts)
        self.wide: list[str] = []

    def _linear(self, node: Node) -> list[torch.Tensor]:
        made = super()._linear(node)
        x, weight = node.args[:2]
        assert isinstance(x, Node) and isinstance(weight, Node)
        if any(value.abs().max() > LIMIT for value in (*self.values[x], *made)):
            self.wide.append(str(weight.target))
        return made
