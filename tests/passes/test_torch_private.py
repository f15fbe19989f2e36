"""What is used of PyTorch's private parts: where, and that it does what the passes rely on."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.fx import Graph, GraphModule, symbolic_trace
from torch.fx.experimental.proxy_tensor import make_fx

from ingot.passes.graph import value
from ingot.passes.torch_matcher import Matcher, is_erased
from ingot.passes.torch_symbols import fake_mode, new_size
from tests.passes import cases
from tests.passes.support import lab

PACKAGE = Path(__file__).resolve().parents[2] / "ingot"
# A file for each part; `torch._ops.OpOverload` is the type of what `torch.ops` gives.
HOMES = {
    "torch._inductor": ["passes/torch_matcher.py"],
    "torch._dynamo": ["passes/torch_symbols.py"],
    "torch._ops": ["ops/registry.py", "passes/dump.py"],
}
aten = torch.ops.aten
EPS = 0.123


def private_parts(tree: ast.AST) -> Iterator[str]:
    """`torch._x` wherever a module imports or names it."""
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names = [f"{node.value.id}.{node.attr}"]
        yield from (".".join(n.split(".")[:2]) for n in names if n.startswith("torch._"))


def test_private_parts_stay_where_they_are_looked_after():
    found: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for part in sorted(set(private_parts(ast.parse(path.read_text())))):
            found.setdefault(part, []).append(path.relative_to(PACKAGE).as_posix())
    assert found == HOMES


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


def test_what_was_matched_is_erased_when_nobody_reads_it():
    gm = traced(lambda a, b: aten.mul(aten.add(a, 7.5), b), 2)
    calls = gm.graph.find_nodes(op="call_function", target=aten.mul.Tensor)
    calls += gm.graph.find_nodes(op="call_function", target=aten.add.Tensor)
    match = matcher().at(calls[0])
    assert match is not None
    calls[0].replace_all_uses_with(match.captures["x"])
    assert not any(map(is_erased, calls))
    match.erase()
    assert all(map(is_erased, calls))
    assert matcher().at(calls[0]) is None


def test_a_graph_that_was_never_traced_matches_nothing():
    gm = symbolic_trace(torch.nn.Identity())
    assert isinstance(gm.graph, Graph) and not any(map(matcher().at, gm.graph.nodes))


def test_sizes_are_symbols_of_their_own_that_nothing_specializes():
    gm = lab(cases.norms)
    sizes = [new_size(gm, name, hint) for name, hint in (("pages", 3), ("rows", 3), ("one", 2))]
    assert len({str(size) for size in sizes}) == 3, "the same hint is not the same size"
    assert all(isinstance(size, torch.SymInt) for size in sizes)
    with fake_mode(gm):
        both = torch.empty(sizes[0], 4, device="meta").flatten()
    assert both.shape[0].node.expr == sizes[0].node.expr * 4
    assert [int(size.node.hint) for size in sizes] == [3, 3, 2]
    assert fake_mode(gm) is value(gm.graph.find_nodes(op="placeholder")[0]).fake_mode
