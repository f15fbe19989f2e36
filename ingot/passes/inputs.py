"""Inputs of the step: placeholders that a pass adds."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.passes.torch_symbols import fake_mode


def new_value(gm: GraphModule, shape: tuple[Any, ...], dtype: torch.dtype) -> torch.Tensor:
    """A fake tensor of the graph."""
    with fake_mode(gm):
        return torch.empty(shape, dtype=dtype, device="meta")


def add_input(
    gm: GraphModule,
    name: str,
    shape: tuple[Any, ...],
    dtype: torch.dtype,
    *,
    after: Node | None = None,
) -> Node:
    """Add a placeholder after that one, or after all that are there."""
    with gm.graph.inserting_after(after or gm.graph.find_nodes(op="placeholder")[-1]):
        node = gm.graph.placeholder(name)
    node.name = name
    node.meta["val"] = new_value(gm, shape, dtype)
    return node
