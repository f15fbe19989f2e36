"""Inputs of the step: placeholders that a pass adds, with sizes that are known only at run time."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

from ingot.passes.graph import value


def fake_mode(gm: GraphModule) -> Any:
    """The mode that the graph's fake tensors live in."""
    first = gm.graph.find_nodes(op="placeholder")[0]
    return value(first).fake_mode  # type: ignore[attr-defined]


def new_size(gm: GraphModule, name: str, hint: int) -> Any:
    """A symbolic size; `hint` is the example that stands for it."""
    from torch._dynamo.source import ConstantSource

    sizes: Any = [DimDynamic.DYNAMIC]
    fake = fake_mode(gm).from_tensor(
        torch.empty(hint, device="meta"),
        source=ConstantSource(name),
        symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes),
    )
    return fake.shape[0]


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
