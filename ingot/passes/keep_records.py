"""keep_records: ops that go on from the row before keep one record of each sequence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.artifact.formats import Format
from ingot.artifact.spec import State
from ingot.artifact.traits import TRAITS
from ingot.passes.graph import (
    arguments,
    call_op,
    op_calls,
    replace,
    signature,
    states_of,
    value,
)
from ingot.passes.inputs import add_input, step_inputs
from ingot.passes.torch_symbols import new_size

Given = Mapping[str, Any]  # the arguments of a call, as tensors


def keep_records(gm: GraphModule) -> int:
    """Give each op that goes on from earlier rows of its sequence a state with their record.

    Before:
        graph(input_ids, positions);  y = short_conv(x, weight, bias)
    After:
        graph(tokens, positions, spans, records, short_conv_record_0, ...)
        y = short_conv(x, weight, bias, tail=short_conv_record_0, spans=spans, records=records)
    """
    nodes = op_calls(gm, *RECORDS)
    if nodes:
        step, slots = step_inputs(gm, "slotted"), new_size(gm, "num_slots", 6)
        for index, node in enumerate(nodes):
            add_record(gm, node, index, step, slots)
    return len(nodes)


def add_record(
    gm: GraphModule, node: Node, index: int, step: Mapping[str, Node], slots: Any
) -> None:
    """Put the form that keeps a record in place of a call."""
    op = str(node.target._schema.name).partition("::")[2]  # type: ignore[union-attr]
    given = arguments(node)
    state = State(
        name=f"{op}_record_{index}",
        kind="slotted",
        format=Format("float32"),
        record=RECORDS[op]({k: value(x) for k, x in given.items() if isinstance(x, Node)}),
    )
    held = add_input(gm, state.name, (slots, *state.record), torch.float32)
    states_of(gm)[state.name] = state
    (written,) = TRAITS[op].mutates
    taking = {**given, written: held, **step}
    taking = {name: taking[name] for name in signature(op).parameters}
    with gm.graph.inserting_before(node):
        replace(node, call_op(gm.graph, op, like=node, val=value(node), **taking))


def _columns(given: Given) -> int:
    return int(given["x"].shape[2])


def _matrices(given: Given) -> tuple[int, int]:
    heads, width = given["v"].shape[2:]
    return int(heads) * int(given["k"].shape[3]), int(width)


# The shape of a record of each op, by the arguments of a call.
RECORDS: Mapping[str, Callable[[Given], tuple[int, int]]] = {
    "token_shift": lambda given: (1, _columns(given)),
    "short_conv": lambda given: (int(given["weight"].shape[0]) - 1, _columns(given)),
    "recurrence": _matrices,
    "selective_scan": lambda given: (int(given["b"].shape[2]), _columns(given)),
}
