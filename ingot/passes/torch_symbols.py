"""Sizes that are known only at run time, which PyTorch makes in private ways: all of them here."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule

from ingot.passes.graph import value


def fake_mode(gm: GraphModule) -> Any:
    """The mode that the graph's fake tensors live in."""
    first = gm.graph.find_nodes(op="placeholder")[0]
    return value(first).fake_mode  # type: ignore[attr-defined]


def new_size(gm: GraphModule, name: str, hint: int) -> Any:
    """A symbolic size; `hint` is the example that stands for it."""
    # Imported here: they take a fifth of a second, and a compile may not come here.
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

    sizes: Any = [DimDynamic.DYNAMIC]
    fake = fake_mode(gm).from_tensor(
        torch.empty(hint, device="meta"),
        source=ConstantSource(name),
        symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes),
    )
    return fake.shape[0]
