"""What is used of PyTorch's private parts: where, and that it does what the passes rely on."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import torch

from ingot.passes.graph import value
from ingot.passes.torch_symbols import fake_mode, new_size
from tests.passes import cases
from tests.passes.support import lab

PACKAGE = Path(__file__).resolve().parents[2] / "ingot"
# A file for each part; `torch._ops.OpOverload` is the type of what `torch.ops` gives.
HOMES = {
    "torch._dispatch": ["compiler/export_fault.py"],
    "torch._dynamo": ["passes/torch_symbols.py"],
    "torch._higher_order_ops": ["onnx/records.py"],
    "torch._ops": ["compiler/graph_data.py", "ops/registry.py", "passes/dump.py"],
    "torch._subclasses": ["compiler/export_fault.py", "onnx/program.py"],
}


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
        text = path.read_text()
        if "torch" not in text:  # most files, which take seconds to parse
            continue
        for part in sorted(set(private_parts(ast.parse(text)))):
            found.setdefault(part, []).append(path.relative_to(PACKAGE).as_posix())
    assert found == HOMES


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
