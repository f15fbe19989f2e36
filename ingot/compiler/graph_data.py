"""Graphs as plain data, so that they can be kept in a file: every node with its arguments."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from functools import reduce
from typing import Any

import torch
from torch.fx import Graph, Node

from ingot.artifact.front_entry import NodeData

# What JSON holds as it is. Of a float it would not tell 1.0 from 1, nor write infinity.
PLAIN = (bool, int, str, type(None))


def graph_data(graph: Graph) -> list[NodeData]:
    """The nodes of a graph, without what their `meta` holds.

    Raises ValueError for a call or an argument that cannot be written down.
    """
    return [
        (
            node.op,
            node.name,
            target_text(node.target),
            [packed(value) for value in node.args],
            {name: packed(value) for name, value in node.kwargs.items()},
        )
        for node in graph.nodes
    ]


def graph_of(data: list[NodeData]) -> Graph:
    """The graph that `graph_data` has written down."""
    graph = Graph()
    nodes: dict[str, Node] = {}
    for op, name, text, args, kwargs in data:
        target = target_of(text) if op == "call_function" else text
        given = tuple(unpacked(value, nodes) for value in args)
        named = {key: unpacked(value, nodes) for key, value in kwargs.items()}
        nodes[name] = graph.create_node(op, target, given, named, name=name)
    return graph


def target_text(target: Any) -> str:
    """Text for a node's target: a name, an operator of PyTorch, or one of Python's."""
    if isinstance(target, str):
        return target
    text = str(target)
    if not isinstance(target, torch._ops.OpOverload):
        text = f"operator.{getattr(target, '__name__', '')}"
    if target_of(text) is not target:
        raise ValueError(f"{target} has no name")
    return text


def target_of(text: str) -> Any:
    """Operator that a text names. Raises ValueError where there is no such operator."""
    names = text.split(".")
    try:
        if names[0] == "operator":
            return getattr(operator, names[1])
        found = reduce(getattr, names, torch.ops)
    except (AttributeError, IndexError) as error:
        raise ValueError(f"no operator is called {text}") from error
    if not isinstance(found, torch._ops.OpOverload):
        raise ValueError(f"no operator is called {text}")
    return found


def packed(value: Any) -> Any:
    """An argument as plain data: what JSON does not tell apart is a dict with one key."""
    if isinstance(value, Node):
        return {"node": value.name}
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, list | tuple):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [packed(item) for item in value]}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if type(value) in PLAIN:
        return value
    name = str(value).removeprefix("torch.")
    if getattr(torch, name, None) is not value:  # a dtype, a layout, a memory format
        raise ValueError(f"{value!r} cannot be written down")
    return {"torch": name}


def unpacked(value: Any, nodes: Mapping[str, Node]) -> Any:
    """The argument that `packed` has written down."""
    if not isinstance(value, dict):
        return value
    ((kind, data),) = value.items()
    if kind in ("list", "tuple"):
        items = [unpacked(item, nodes) for item in data]
        return tuple(items) if kind == "tuple" else items
    if kind == "node":
        return nodes[data]
    if kind == "float":
        return float.fromhex(data)
    return torch.device(data) if kind == "device" else getattr(torch, data)
