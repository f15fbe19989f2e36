"""What the passes that fuse gated MLPs share: `activation(gate) * up`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.fx import Graph, Node

from ingot.passes.graph import call_op, shape, value
from ingot.passes.patterns import Captures, Pattern

SHAPES = {"gate": (1, 3, 5), "up": (1, 3, 5)}


def gate_pattern(name: str, search: Callable[[Tensor, Tensor], Tensor], **given: Any) -> Pattern:
    """A pattern of `gate` and `up` that becomes the op, called with what else it is `given`."""

    def write(graph: Graph, node: Node, captures: Captures) -> Node:
        return call_op(graph, name, like=node, val=value(node), **captures, **given)

    return Pattern(search=search, replace=write, check=same_shape, tensors=SHAPES)


def same_shape(captures: Captures) -> bool:
    """A product that broadcasts is no gate."""
    return shape(captures["gate"]) == shape(captures["up"])
