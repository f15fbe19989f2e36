"""Graphs are written down and read back with all that they hold."""

from __future__ import annotations

import json
import operator

import pytest
import torch
from torch.fx import Graph

from ingot.compiler.graph_data import graph_data, graph_of, packed
from tests.compiler.plans import graph

aten = torch.ops.aten
ARGUMENTS = [
    *(1, 1.0, True, None, "text", -0.0, float("inf"), float("-inf"), 0.1),
    *([1, 2.0], (1, (2,)), [], (), [None, [True]]),
    *(torch.bfloat16, torch.device("meta"), torch.strided, torch.contiguous_format),
]


def one_call(target: object, *args: object, **kwargs: object) -> Graph:
    made = Graph()
    made.output(made.create_node("call_function", target, (made.placeholder("x"), *args), kwargs))
    return made


def read_back(made: Graph) -> Graph:
    return graph_of(json.loads(json.dumps(graph_data(made))))


def test_an_exported_graph_comes_back_whole() -> None:
    before = graph().graph
    after = read_back(before)
    assert len(after.nodes) == len(before.nodes) > 50
    for one, other in zip(before.nodes, after.nodes, strict=True):
        assert (one.op, one.name, one.target) == (other.op, other.name, other.target)
        assert repr((one.args, one.kwargs)) == repr((other.args, other.kwargs))
        assert list(map(str, one.users)) == list(map(str, other.users))


@pytest.mark.parametrize("value", ARGUMENTS, ids=repr)
def test_an_argument_keeps_its_value_and_its_type(value: object) -> None:
    after = read_back(one_call(aten.add.Tensor, value, alpha=value))
    call = after.find_nodes(op="call_function", target=aten.add.Tensor)[0]
    assert repr(call.args[1]) == repr(value) == repr(call.kwargs["alpha"])
    assert type(value) in (type(call.args[1]), list) and call.args[0].name == "x"


def test_operators_of_python_are_known_by_their_names() -> None:
    after = read_back(one_call(operator.floordiv, 2))
    assert after.find_nodes(op="call_function", target=operator.floordiv)


@pytest.mark.parametrize("argument", [slice(1, 2), object(), {"a": 1}, torch.ones(1), 1j])
def test_an_argument_that_has_no_text_is_refused(argument: object) -> None:
    with pytest.raises(ValueError, match="written down"):
        packed([argument])


@pytest.mark.parametrize("target", [lambda x: x, torch.add, len])
def test_a_call_that_has_no_name_is_refused(target: object) -> None:
    with pytest.raises(ValueError):
        graph_data(one_call(target))


@pytest.mark.parametrize(
    "name", ["aten.no_such.default", "operator.no_such", "operator", "aten.add", ""]
)
def test_a_name_that_nothing_has_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no operator"):
        graph_of([("call_function", "a", name, [], {})])
