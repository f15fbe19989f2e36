"""quantize_linears: weight matrices in int8 or int4, times activations in int8."""

from __future__ import annotations

import operator

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ingot.artifact.formats import Spans, Storage
from ingot.artifact.target import Target
from ingot.errors import UsageError
from ingot.passes.graph import arguments, call, call_op, is_op, op_name, replace, value
from ingot.passes.storage import MULTIPLIERS_SUFFIX, SCALES_SUFFIX, Choose, per_channel
from ingot.passes.weights import set_parameter, sources

Activations = dict[tuple[Node, int], tuple[Node, Node]]


def quantize_linears(gm: GraphModule, *, target: Target, choose: Choose = per_channel) -> int:
    """Store matrices as integers with a scale for every group, and multiply integers with them.

    `choose` says how each of the model's matrices is stored. A table that embedding and head share
    is stored once. Activations are quantized once for all linears that read them with the same
    block. Returns how many of the model's matrices are now quantized.

    Before:
        h = rms_norm(x, w);  y = linear(h, W);  z = linear(h, V)
    After:
        h = rms_norm(x, w);  q, s = quantize(h, 128)
        y = quantized_linear(q, s, W, W_multipliers, W_scales, group=32, block=128, bits=4)
        z = quantized_linear(q, s, V, V_multipliers, V_scales, group=32, block=128, bits=4)
    """
    matched: set[str] = set()
    activations: Activations = {}
    for name, weights in matrices(gm).items():
        storage = agreed(sources(gm, name), name, choose)
        users = [user for weight in weights for user in weight.users]
        if storage is None or not all(reads_matrix(user) for user in users):
            continue
        for weight in weights:
            quantize_readers(gm, weight, storage, activations)
        matched.update(sources(gm, name))
    return len(matched)


def matrices(gm: GraphModule) -> dict[str, list[Node]]:
    """The nodes that read each parameter with two dimensions, by its name, in graph order."""
    found: dict[str, list[Node]] = {}
    for node in gm.graph.find_nodes(op="get_attr"):
        if value(node).dim() == 2 and value(node).dtype.is_floating_point:
            found.setdefault(str(node.target), []).append(node)
    return found


def reads_matrix(user: Node) -> bool:
    """Whether it is a linear or an embedding."""
    return is_op(user, "linear") or is_op(user, "embedding")


def agreed(names: tuple[str, ...], merged: str, choose: Choose) -> Storage | None:
    """The storage of a parameter that is stacked from those; they must agree.

    Raises:
        UsageError: they do not.
    """
    chosen = {name: choose(name) for name in names}
    if len(set(chosen.values())) > 1:
        listed = ", ".join(f"{n} {s.label if s else 'not'}" for n, s in chosen.items())
        raise UsageError(
            f"{merged} is one matrix, but its parts would be stored in different ways: {listed}",
            hint="Give --keep a pattern that all of them match, or --disable-pass merge_linears.",
        )
    return next(iter(chosen.values()))


def quantize_readers(
    gm: GraphModule, weight: Node, storage: Storage, activations: Activations
) -> None:
    """Let every reader of a weight read it as integers and scales."""
    outputs, columns = map(int, value(weight).shape)
    spans = storage.of(columns)
    if columns % spans.group:
        raise UsageError(
            f"groups of {spans.group} do not divide the {columns} columns of {weight.target}",
            hint="Choose another --group-size, or keep that weight: --keep 'PATTERN=none'.",
        )
    stored = add_parts(gm, weight, (outputs, columns), spans)
    stored |= {"group": spans.group, "block": spans.block, "bits": storage.bits}
    for user in list(weight.users):
        with gm.graph.inserting_before(user):
            new = (
                quantized_linear(user, stored, spans.block, activations)
                if op_name(user) == "linear"
                else quantized_embedding(user, stored)
            )
        replace(user, new)
    weight.meta["val"] = value(weight).to(torch.int8)
    set_parameter(gm, str(weight.target), value(weight))


def add_parts(
    gm: GraphModule, weight: Node, shape: tuple[int, int], spans: Spans
) -> dict[str, Node | int | None]:
    """Parameters for the multipliers, if any, and the scales of a weight; arguments of its ops."""
    outputs, columns = shape
    scales = value(weight).new_empty((outputs, columns // spans.block), dtype=torch.float32)
    multipliers = value(weight).new_empty((outputs, columns // spans.group), dtype=torch.int8)
    return {
        "weight_scales": add_part(gm, weight, SCALES_SUFFIX, scales),
        "weight_multipliers": add_part(gm, weight, MULTIPLIERS_SUFFIX, multipliers)
        if spans.has_multipliers
        else None,
    }


def add_part(gm: GraphModule, weight: Node, suffix: str, val: Tensor) -> Node:
    """A parameter beside a weight; it has the weight's sources."""
    name = f"{weight.target}{suffix}"
    gm.meta.setdefault("weight_sources", {})[name] = sources(gm, str(weight.target))
    set_parameter(gm, name, val)
    with gm.graph.inserting_after(weight):
        node = gm.graph.get_attr(name)
    node.meta["val"] = val
    return node


def quantized_linear(
    node: Node, stored: dict[str, Node | int | None], block: int, activations: Activations
) -> Node:
    given = arguments(node)
    x = given["x"]
    if (x, block) not in activations:
        both = call_op(node.graph, "quantize", like=node, x=x, group=block)
        parts = [call(node.graph, operator.getitem, both, i, like=node) for i in range(2)]
        activations[x, block] = (parts[0], parts[1])
    values, scales = activations[x, block]
    return call_op(
        node.graph,
        "quantized_linear",
        like=node,
        val=value(node),
        values=values,
        scales=scales,
        weight=given["weight"],
        bias=given["bias"],
        **stored,
    )


def quantized_embedding(node: Node, stored: dict[str, Node | int | None]) -> Node:
    given = arguments(node)
    return call_op(
        node.graph,
        "quantized_embedding",
        like=node,
        val=value(node),
        tokens=given["tokens"],
        weight=given["weight"],
        **stored,
    )
