"""keep_records: ops that go on from the row before keep one record of each sequence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.artifact.formats import Format
from ingot.artifact.spec import State
from ingot.artifact.traits import TRAITS
from ingot.ops import OPS
from ingot.ops.registry import Args
from ingot.passes.graph import (
    arguments,
    call_op,
    op_name,
    op_nodes,
    replace,
    signature,
    states_of,
    value,
)
from ingot.passes.inputs import add_input, step_inputs
from ingot.passes.torch_symbols import new_size


def keep_records(gm: GraphModule) -> int:
    """Give each op that goes on from earlier rows of its sequence a state with their record.

    Before:
        graph(input_ids, positions);  y = short_conv(x, weight, bias)
    After:
        graph(tokens, positions, spans, records, short_conv_record_0, ...)
        y = short_conv(x, weight, bias, tail=short_conv_record_0, spans=spans, records=records)
    """
    nodes = [node for node, _ in op_nodes(gm) if OPS[op_name(node)].record]
    if nodes:
        step, slots = step_inputs(gm, "slotted"), new_size(gm, "num_slots", 6)
        for index, node in enumerate(nodes):
            add_record(gm, node, index, step, slots)
    return len(nodes)


def record_of(node: Node) -> tuple[int, int]:
    """The shape of what a call keeps of a sequence."""
    record = OPS[op_name(node)].record
    assert record is not None, "it keeps a record"
    return record(Args(**{name: each(x) for name, x in arguments(node).items()}))


def each(given: Any) -> Any:
    """An argument of a call: the fake tensor of a node, or what it is."""
    return value(given) if isinstance(given, Node) else given


def add_record(
    gm: GraphModule, node: Node, index: int, step: Mapping[str, Node], slots: Any
) -> None:
    """Put the form that keeps a record in place of a call."""
    op, given = op_name(node), arguments(node)
    state = State(
        name=f"{op}_record_{index}",
        kind="slotted",
        format=Format("float32"),
        record=record_of(node),
    )
    held = add_input(gm, state.name, (slots, *state.record), torch.float32)
    states_of(gm)[state.name] = state
    (written,) = TRAITS[op].mutates
    taking = {**given, written: held, **step}
    taking = {name: taking[name] for name in signature(op).parameters}
    with gm.graph.inserting_before(node):
        replace(node, call_op(gm.graph, op, like=node, val=value(node), **taking))
