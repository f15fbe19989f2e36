"""Parameters that a pass makes: which of the model's parameters they are stacked from.

`gm.meta["weight_sources"]` maps the name of a made parameter to the names of the model's
parameters whose rows it holds, in order. A parameter that is not listed is its own source.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node


def sources(gm: GraphModule, name: str) -> tuple[str, ...]:
    """The model's parameters that a parameter of the graph is stacked from."""
    found: dict[str, tuple[str, ...]] = gm.meta.get("weight_sources", {})
    return found.get(name, (name,))


def add_stacked(
    gm: GraphModule, name: str, origins: tuple[str, ...], val: torch.Tensor, *, before: Node
) -> Node:
    """Register a meta parameter stacked from `origins` and read it before that node."""
    set_parameter(gm, name, val)
    gm.meta.setdefault("weight_sources", {})[name] = origins
    with gm.graph.inserting_before(before):
        node = gm.graph.get_attr(name)
    node.meta["val"] = val
    return node


def set_parameter(gm: GraphModule, name: str, val: torch.Tensor) -> None:
    """Register a meta parameter under a dotted name, making the modules on the way."""
    *path, leaf = name.split(".")
    module: torch.nn.Module = gm
    for part in path:
        if not hasattr(module, part):
            module.add_module(part, torch.nn.Module())
        module = getattr(module, part)
    data = torch.empty(tuple(val.shape), dtype=val.dtype, device="meta")
    if hasattr(module, leaf):
        delattr(module, leaf)
    module.register_parameter(leaf, torch.nn.Parameter(data, requires_grad=False))
