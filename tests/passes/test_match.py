"""A pattern is found where its calls stand, whatever its arguments are, and nowhere else."""

from __future__ import annotations

import pytest
import torch
from torch.fx import GraphModule, Node, symbolic_trace
from torch.fx.experimental.proxy_tensor import make_fx

from ingot.passes.patterns import Match, Matcher

aten = torch.ops.aten
EPS = 0.123


def matcher() -> Matcher:
    def pattern(x, w):
        return aten.mul(aten.add(x, EPS), w)

    graph = make_fx(pattern)(torch.empty(2), torch.empty(2))
    return Matcher(graph, ("x", "w"), {"eps": EPS})


def traced(function, inputs: int) -> GraphModule:
    return make_fx(function)(*(torch.empty(2) for _ in range(inputs)))


def test_a_pattern_is_found_with_its_nodes_and_scalars():
    gm = traced(lambda a, b: aten.relu(aten.mul(aten.add(a, 7.5), b)), 2)
    a, b = gm.graph.find_nodes(op="placeholder")
    found = [match for match in map(matcher().at, gm.graph.nodes) if match]
    assert [match.captures for match in found] == [{"x": a, "w": b, "eps": 7.5}]


@pytest.mark.parametrize(
    "other",
    [
        lambda a, b: aten.mul(aten.sub(a, 7.5), b),
        lambda a, b: aten.mul(aten.add(a, 7.5, alpha=2), b),  # an option that the pattern has not
        lambda a, b: [aten.mul(s := aten.add(a, 7.5), b), s],  # a reader of what is inside
    ],
    ids=["another op", "another option", "another reader"],
)
def test_what_only_looks_like_a_pattern_is_not_found(other):
    gm = traced(other, 2)
    assert not any(map(matcher().at, gm.graph.nodes))


def found(gm: GraphModule, pattern: Matcher) -> list[Match]:
    return [match for match in map(pattern.at, gm.graph.nodes) if match]


def test_a_default_may_be_spelled_out():
    plain = traced(lambda a, b: aten.mul(aten.add(a, 7.5), b), 2)
    spelled = traced(lambda a, b: aten.mul(aten.add(a, 7.5), b), 2)
    (add,) = spelled.graph.find_nodes(op="call_function", target=aten.add.Tensor)
    add.kwargs = {"alpha": 1}
    assert len(found(spelled, matcher())) == 1
    assert len(found(plain, Matcher(spelled, ("x", "w"), {"eps": 7.5}))) == 1
    add.kwargs = {"alpha": 2}
    assert not found(spelled, matcher())


def test_an_argument_that_occurs_twice_is_the_same_both_times():
    def pattern(x):
        return aten.add(aten.mul(x, EPS), aten.mul(aten.relu(x), EPS))

    both = Matcher(traced(pattern, 1), ("x",), {"eps": EPS})

    def like(one: float, other: float):
        return lambda a: aten.add(aten.mul(a, one), aten.mul(aten.relu(a), other))

    assert [match.captures["eps"] for match in found(traced(like(7, 7), 1), both)] == [7]
    assert not found(traced(like(7, 8), 1), both)
    other_tensor = traced(lambda a, b: aten.add(aten.mul(a, 7), aten.mul(aten.relu(b), 7)), 2)
    assert not found(other_tensor, both)


def test_a_call_that_the_pattern_reads_twice_is_one_call():
    def pattern(x):
        half = aten.relu(x)
        return aten.mul(half, aten.add(half, EPS))

    shared = Matcher(traced(pattern, 1), ("x",), {"eps": EPS})
    assert found(traced(lambda a: aten.mul(h := aten.relu(a), aten.add(h, 7)), 1), shared)
    two = traced(lambda a: aten.mul(aten.relu(a), aten.add(aten.relu(a), 7)), 1)
    assert not found(two, shared)


def test_a_tensor_is_no_number_and_a_number_no_tensor():
    assert not found(traced(lambda a: aten.mul(aten.add(a, 7.5), 2.0), 1), matcher())
    assert not found(traced(lambda a, b: aten.mul(aten.add(a, a), b), 2), matcher())


def test_lists_match_by_length_and_entries():
    def joined(*order: int):
        return lambda a, b: aten.cat([(a, b)[i] for i in order], 0)

    pair = Matcher(traced(joined(0, 1), 2), ("x", "w"), {})
    gm = traced(joined(1, 0), 2)
    a, b = gm.graph.find_nodes(op="placeholder")
    assert [match.captures for match in found(gm, pair)] == [{"x": b, "w": a}]
    assert not found(traced(joined(0, 1, 0), 2), pair)
    assert not found(traced(joined(0), 2), pair)
    assert not found(traced(lambda a, b: aten.cat([a, b], -1), 2), pair)


def test_the_result_may_have_many_readers():
    gm = traced(lambda a, b: [m := aten.mul(aten.add(a, 7.5), b), aten.relu(m), aten.neg(m)], 2)
    assert len(found(gm, matcher())) == 1


def names(nodes: set[Node]) -> set[str]:
    return {node.name for node in nodes}


def test_what_was_matched_is_erased_when_nobody_reads_it():
    gm = traced(lambda a, b: aten.mul(aten.add(a, 7.5), b), 2)
    (match,) = found(gm, matcher())
    (result,) = gm.graph.find_nodes(op="call_function", target=aten.mul.Tensor)
    assert match.erase() == set(), "the result is read"
    result.replace_all_uses_with(match.captures["x"])
    assert names(match.erase()) == {"mul", "add"}
    assert [node.op for node in gm.graph.nodes] == ["placeholder", "placeholder", "output"]


@pytest.mark.filterwarnings("error")
def test_two_equal_calls_may_be_found_as_one_node():
    """As a graph has it whose equal calls were merged."""
    pattern = traced(lambda a: aten.mul(aten.sigmoid(a), aten.sigmoid(a)), 1)
    gm = traced(lambda a: aten.mul(s := aten.sigmoid(a), s), 1)
    (match,) = found(gm, Matcher(pattern, ("x",), {}))
    assert len(match.nodes) == 3 and len(set(match.nodes.values())) == 2
    (result,) = gm.graph.output_node().all_input_nodes
    result.replace_all_uses_with(match.captures["x"])
    assert names(match.erase()) == {"mul", "sigmoid"}


def test_what_others_read_twice_inside_is_erased_after_its_readers():
    def pattern(x):
        half = aten.relu(x)
        return aten.mul(half, aten.add(half, EPS))

    gm = traced(pattern, 1)
    (match,) = found(gm, Matcher(traced(pattern, 1), ("x",), {"eps": EPS}))
    (result,) = gm.graph.find_nodes(op="call_function", target=aten.mul.Tensor)
    result.replace_all_uses_with(match.captures["x"])
    assert names(match.erase()) == {"mul", "add", "relu"}


def test_a_graph_that_was_never_traced_matches_nothing():
    gm = symbolic_trace(torch.nn.Identity())
    assert not found(gm, matcher())
