"""PyTorch's own matcher of graphs, which is private to it: all that is used of it is here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import GraphModule, Node


@dataclass(frozen=True, slots=True)
class Match:
    """Nodes that a pattern stands for; `captures` are its arguments by name: nodes and scalars."""

    captures: dict[str, Any]
    _match: Any

    def erase(self) -> None:
        """Removes the nodes that nobody reads any more."""
        self._match.erase_nodes()


class Matcher:
    """Finds the graph of a pattern in other graphs.

    `names` are those of its placeholders, in order; `scalars` are values that stand in its calls
    for what they are named: they match any scalar, and capture it.
    """

    def __init__(
        self, pattern: GraphModule, names: Sequence[str], scalars: Mapping[str, float | int]
    ) -> None:
        # Imported here: it takes most of a second.
        from torch._inductor.pattern_matcher import fx_to_pattern

        self._expr: Any = fx_to_pattern(pattern, argnames=names, scalar_workaround=dict(scalars))

    def at(self, node: Node) -> Match | None:
        """The match whose result is that node."""
        if is_erased(node) or node.target not in self._expr.fns:
            return None
        match = self._expr.match(node)
        return None if not match or _has_more_options(match) else Match(match.kwargs, match)


def is_erased(node: Node) -> bool:
    """Whether the node has been removed from its graph."""
    return node._erased


def _has_more_options(match: Any) -> bool:
    """Whether a matched call has keyword arguments that the pattern's call has not.

    PyTorch's matcher ignores them: gelu(x) would match gelu(x, approximate="tanh").
    """
    pairs = match.ctx.pattern_to_node.items()
    return any(
        set(node.kwargs) - set(expr.kwargs)
        for expr, node in pairs
        if isinstance(node, Node) and hasattr(expr, "kwargs")
    )
