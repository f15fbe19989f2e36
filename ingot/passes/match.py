"""Finds the graph of a pattern in another graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.fx import GraphModule, Node


@dataclass(frozen=True, slots=True)
class Match:
    """An occurrence of a pattern in a graph.

    nodes      the node that each call of the pattern was found as; equal calls may share one
    captures   what its arguments were found as, by name: nodes and scalars
    """

    nodes: dict[Node, Node] = field(default_factory=dict)
    captures: dict[str, Any] = field(default_factory=dict)

    def erase(self) -> set[Node]:
        """Removes the nodes that nobody reads any more; returns them."""
        erased = set()
        for node in sorted(set(self.nodes.values()), reverse=True):
            if not node.users:
                node.graph.erase_node(node)
                erased.add(node)
        return erased


class Matcher:
    """Finds the graph of a pattern in other graphs.

    `names` are those of its placeholders, in order; `scalars` are values that stand in its calls
    for what they are named. A placeholder matches any node, a scalar any number, and both capture
    it; where one occurs twice, it must be the same both times. Nodes inside a match are read by
    nobody outside of it.
    """

    def __init__(
        self, pattern: GraphModule, names: Sequence[str], scalars: Mapping[str, float | int]
    ) -> None:
        (self._result,) = pattern.graph.output_node().all_input_nodes
        inputs = pattern.graph.find_nodes(op="placeholder")
        self._names: dict[Any, str] = dict(zip(inputs, names, strict=True))
        self._names |= {scalar: name for name, scalar in scalars.items()}

    def at(self, node: Node) -> Match | None:
        """The match whose result is that node."""
        match = Match()
        fits = self._fits(self._result, node, match)
        return match if fits and _is_closed(match, node) else None

    def _fits(self, wanted: Any, given: Any, match: Match) -> bool:
        """Tells whether a value of the graph is what the pattern has there. Notes it if so."""
        if isinstance(wanted, (list, tuple)):
            return (
                isinstance(given, (list, tuple))
                and len(wanted) == len(given)
                and all(self._fits(*pair, match) for pair in zip(wanted, given, strict=True))
            )
        if name := self._names.get(wanted):
            kind = Node if isinstance(wanted, Node) else (int, float)
            return isinstance(given, kind) and match.captures.setdefault(name, given) == given
        if isinstance(wanted, Node):
            return self._fits_call(wanted, given, match)
        return bool(wanted == given)

    def _fits_call(self, wanted: Node, given: Any, match: Match) -> bool:
        if wanted in match.nodes:
            return match.nodes[wanted] is given
        if not isinstance(given, Node) or wanted.target != given.target:
            return False
        match.nodes[wanted] = given
        return self._fits(_arguments(wanted), _arguments(given), match)


def _arguments(node: Node) -> list[Any]:
    """The arguments of a call, however they were passed, defaults included."""
    # A default may be written out or left out: both must match.
    declared = node.target._schema.arguments[len(node.args) :]  # type: ignore[union-attr]
    return [*node.args, *(node.kwargs.get(a.name, a.default_value) for a in declared)]


def _is_closed(match: Match, result: Node) -> bool:
    """Tells whether only the match reads the nodes inside of it."""
    # What others read would have to be computed beside the op that replaces the match.
    nodes = set(match.nodes.values())
    return all(nodes.issuperset(node.users) for node in nodes - {result})
