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
from ingot.passes.match import Matcher

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
