"""canonicalize_spellings: arithmetic that PyTorch has a function for becomes its call."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from ingot.passes.graph import aten, call, rank, value
from ingot.passes.patterns import Captures, Pattern, apply_patterns


def canonicalize_spellings(gm: GraphModule) -> int:
    """Call PyTorch's GELU and layer norm where a module spells them out.

    Before:
        y = 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))
        z = (x - mean(x)) * rsqrt(mean((x - mean(x)) ** 2) + eps) * weight
    After:
        y = aten.gelu(x, approximate="tanh");  z = aten.layer_norm(x, [C], weight, None, eps)
    """
    return apply_patterns(gm, PATTERNS)


def gelu_of_cube(x: Tensor) -> Tensor:
    """GELU as GPT-2 writes it."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x.pow(3.0))))


def gelu_of_products(x: Tensor) -> Tensor:
    """GELU with one power less."""
    return 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x)))


def gelu_of_bloom(x: Tensor) -> Tensor:
    """GELU as BLOOM writes it: in another order, and with another digit less."""
    return x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))


def layer_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).pow(2).mean(-1, keepdim=True)
    return (x - mean) * torch.rsqrt(variance + eps) * weight


def write_gelu(graph: Graph, node: Node, captures: Captures) -> Node:
    gelu = call(graph, aten.gelu.default, captures["x"], like=node, val=value(node))
    gelu.kwargs = {"approximate": "tanh"}
    return gelu


def write_layer_norm(graph: Graph, node: Node, captures: Captures) -> Node:
    x, weight, eps = (captures[name] for name in ("x", "weight", "eps"))
    sizes = [int(value(weight).shape[0])]
    args = (x, sizes, weight, None, eps)
    return call(graph, aten.layer_norm.default, *args, like=node, val=value(node))


def is_norm(captures: Captures) -> bool:
    """One weight an element of the row."""
    x, weight = captures["x"], captures["weight"]
    return rank(weight) == 1 and bool(value(x).shape[-1] == value(weight).shape[0])


def gelu(search: Callable[[Tensor], Tensor]) -> Pattern:
    return Pattern(search=search, replace=write_gelu, tensors={"x": (1, 3, 5)})


PATTERNS = (
    gelu(gelu_of_cube),
    gelu(gelu_of_products),
    gelu(gelu_of_bloom),
    Pattern(
        search=layer_norm,
        replace=write_layer_norm,
        check=is_norm,
        tensors={"x": (1, 3, 5), "weight": (5,)},
        scalars={"eps": 0.317},
    ),
)
