"""Patterns: pairs of plain functions, one that is looked for and one that is written instead.

`search` is traced once on small meta tensors and canonicalised like any graph. Its scalars (an
epsilon, half a head) are traced as values that occur nowhere else and become captures, so that one
pattern serves every model. `replace` is called with the captured nodes and scalars.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from ingot.passes.canonicalize_casts import canonicalize_casts
from ingot.passes.canonicalize_ops import canonicalize_ops
from ingot.passes.canonicalize_views import canonicalize_views

Captures = dict[str, Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class Pattern:
    """A rewrite: what to look for and what to write instead.

    search    a plain function of tensors and scalars; the pattern is the graph of its result
    tensors   shapes to trace it with, by argument name; float32
    scalars   values to trace it with, by argument name: no two alike, none in the function itself
    replace   replace(graph, node, captures) inserts the replacement and returns it
    check     a guard on the captures; False is a near miss
    """

    search: Callable[..., torch.Tensor]
    replace: Callable[[Graph, Node, Captures], Node]
    tensors: Mapping[str, Sequence[int]]
    scalars: Mapping[str, float | int] = field(default_factory=dict)
    check: Callable[[Captures], bool] = lambda captures: True

    @property
    def names(self) -> list[str]:
        """The arguments that are tensors, in order."""
        return [name for name in inspect.signature(self.search).parameters if name in self.tensors]


def apply_patterns(gm: GraphModule, patterns: Sequence[Pattern]) -> int:
    """Rewrite every match of every pattern, in graph order; returns how many there were."""
    return sum(_apply(gm, pattern) for pattern in patterns)


def _apply(gm: GraphModule, pattern: Pattern) -> int:
    matcher = compile_pattern(pattern)
    count = 0
    erased: set[Node] = set()
    for node in list(gm.graph.nodes):
        match = None if node in erased else matcher.at(node)
        if match is None or not pattern.check(match.captures):
            continue
        with gm.graph.inserting_before(node):
            new = pattern.replace(gm.graph, node, match.captures)
        node.replace_all_uses_with(new)
        erased |= match.erase()
        count += 1
    return count


@cache
def compile_pattern(pattern: Pattern) -> Matcher:
    """Makes a matcher of a pattern."""
    return Matcher(trace(pattern), pattern.names, pattern.scalars)


def trace(pattern: Pattern) -> GraphModule:
    """The canonical graph of a pattern's search function."""
    from torch.fx.experimental.proxy_tensor import make_fx

    def search(*given: torch.Tensor) -> torch.Tensor:
        return pattern.search(**dict(zip(pattern.names, given, strict=True)), **pattern.scalars)

    examples = [torch.empty(pattern.tensors[name], device="meta") for name in pattern.names]
    gm = make_fx(search, tracing_mode="fake", pre_dispatch=True)(*examples)
    for canonicalize in (canonicalize_casts, canonicalize_views, canonicalize_ops):
        canonicalize(gm)
    gm.graph.eliminate_dead_code()
    return gm


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
