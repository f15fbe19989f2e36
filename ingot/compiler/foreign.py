"""What is done to the graph of another library's module before the passes see it."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.errors import PassError, UnsupportedModelError, listed
from ingot.passes.graph import aten, is_call, op_name, origin, shape
from ingot.passes.invariants import is_row_view

ADDED = (aten.lift_fresh_copy.default, aten.detach_.default, aten.to.dtype, aten.clone.default)


def settle(gm: GraphModule, constants: Mapping[str, torch.Tensor]) -> None:
    """Writes constants of one number as that number, and every parameter under its first name."""
    names: dict[int, str] = {}
    for name, parameter in gm.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), name)
    for node in gm.graph.find_nodes(op="get_attr"):
        tensor = attribute(gm, str(node.target))
        node.target = names.get(id(tensor), node.target)
        known = constants.get(str(node.target), tensor)
        if known.numel() == 1 and not known.is_meta:
            write_number(node, known.item())
    gm.graph.eliminate_dead_code()


def attribute(gm: GraphModule, name: str) -> torch.Tensor:
    found: torch.Tensor = operator.attrgetter(name)(gm)
    return found


def write_number(node: Node, number: float) -> None:
    """Lets arithmetic read a number instead of a tensor that holds it."""
    for user in list(node.users):
        if is_call(user, *ADDED):
            write_number(user, number)
        elif is_call(user, *ARITHMETIC) and user.args[1] is node and user.args[0] is not node:
            user.args = (user.args[0], number, *user.args[2:])
        elif is_call(user, aten.mul.Tensor, aten.add.Tensor) and user.args[0] is node:
            if user.args[1] is not node:
                user.args = (user.args[1], number)


ARITHMETIC = (aten.mul.Tensor, aten.div.Tensor, aten.add.Tensor, aten.sub.Tensor)


def strangers(gm: GraphModule) -> dict[str, str]:
    """The calls that no op stands for, by name, each with the first module that has one."""
    found: dict[str, str] = {}
    for node in gm.graph.nodes:
        if node.op != "call_function" or op_name(node) or not node.users:
            continue
        if isinstance(node.meta.get("val"), torch.Tensor) and not is_row_view(node):
            found.setdefault(str(node.target).removesuffix(".default"), origin(node))
    return found


def refusal(gm: GraphModule, architecture: str, error: PassError) -> UnsupportedModelError:
    """The error of a graph that the passes could not finish: what stands in the way, and where."""
    found = strangers(gm)
    calls = [f"{name} at {where or 'the model itself'}" for name, where in found.items()]
    return UnsupportedModelError(
        f"{architecture} computes what no op stands for: {listed(calls, 3)}"
        if calls
        else f"{architecture} cannot be compiled: {error.found}",
        hint="docs/transformers_classes.md tells which classes compile. --dump DIR shows the graph "
        "after every pass; a family of the model's own may be written: docs/add_a_model.md",
    )
