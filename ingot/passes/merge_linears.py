"""merge_linears: linears that share an input become one with stacked weights."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import accumulate, pairwise
from types import MappingProxyType

import torch
from torch.fx import GraphModule, Node

from ingot.artifact.formats import Storage
from ingot.passes.graph import (
    arguments,
    aten,
    call,
    call_op,
    op_calls,
    origin,
    replace,
    routes,
    steers,
    value,
)
from ingot.passes.stacked_name import stacked_name
from ingot.passes.weights import add_stacked, sources


def merge_linears(gm: GraphModule, kept: Mapping[str, Storage] = MappingProxyType({})) -> int:
    """Stack the weights of linears with one input in one module: q, k, v; gate and up.

    Where attention and MLP run side by side they read one norm, and stay apart.

    Linears with a bias and linears without one are merged apart, so that no bias of zeros, which
    would have no source in the checkpoint, is ever invented. So are those that a checkpoint stores
    in different ways, as `kept` says: their place counts, whatever becomes of it. Linears that
    experts are picked by or states are steered by stay by themselves: they are never integers.

    Before:
        q = linear(x, Wq);  k = linear(x, Wk);  v = linear(x, Wv)
    After:
        y = linear(x, W), W = [Wq; Wk; Wv];  q = slice(y, 2, 0, Q);  k = slice(y, 2, Q, Q + K);  ...
    """
    places: dict[tuple[Node, bool, str], list[Node]] = defaultdict(list)
    for node in op_calls(gm, "linear"):
        given = arguments(node)
        alone = len(given["weight"].users) == 1 and not (routes(node) or steers(node))
        if given["weight"].op == "get_attr" and alone:
            module = origin(node).rpartition(".")[0]
            places[given["x"], given["bias"] is not None, module].append(node)
    shared = [place for place in places.values() if len(place) > 1]
    for place in shared:
        alike: dict[Storage | None, list[Node]] = defaultdict(list)
        for node in place:
            alike[kept.get(str(arguments(node)["weight"].target))].append(node)
        for group in alike.values():
            if len(group) > 1:
                merge(gm, group)
    return len(shared)


def merge(gm: GraphModule, group: list[Node]) -> None:
    graph, first = gm.graph, group[0]
    given = [arguments(node) for node in group]
    weight = stack(gm, [g["weight"] for g in given])
    bias = stack(gm, [g["bias"] for g in given]) if given[0]["bias"] is not None else None
    ends = list(accumulate((int(value(g["weight"]).shape[0]) for g in given), initial=0))
    with graph.inserting_before(first):
        both = call_op(graph, "linear", like=first, x=given[0]["x"], weight=weight, bias=bias)
        both.meta["nn_module_stack"] = common_stack(group)
        parts = [
            call(graph, aten.slice.Tensor, both, 2, start, end, like=node, val=value(node))
            for node, (start, end) in zip(group, pairwise(ends), strict=True)
        ]
    for node, part in zip(group, parts, strict=True):
        replace(node, part)


def stack(gm: GraphModule, nodes: list[Node]) -> Node:
    """A parameter whose rows are those of these parameters, one after the other."""
    name = stacked_name([str(node.target) for node in nodes])
    origins = tuple(source for node in nodes for source in sources(gm, str(node.target)))
    val = torch.cat([value(node) for node in nodes])
    return add_stacked(gm, name, origins, val, before=nodes[0])


def common_stack(group: list[Node]) -> dict[str, tuple[str, object]]:
    """The modules that all of them are in."""
    stacks = [node.meta.get("nn_module_stack", {}) for node in group]
    return {k: v for k, v in stacks[0].items() if all(s.get(k) == v for s in stacks)}
