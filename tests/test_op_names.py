"""Code asks for traits: outside the rooms of ops and targets it compares no op's name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.op_name_rules import comparisons

ROOT = Path(__file__).resolve().parent.parent


def test_the_package_compares_no_names():
    assert comparisons(ROOT / "ingot") == []


def found(tmp_path: Path, file: str, source: str) -> list[str]:
    path = tmp_path / "ingot" / file
    path.parent.mkdir(parents=True)
    path.write_text(source)
    return comparisons(tmp_path / "ingot")


COMPARES, TABLE = "compares the name of an op", "has a table keyed by names of ops"


@pytest.mark.parametrize(
    ("file", "source", "what"),
    [
        ("compiler/lower.py", 'if instruction.op == "linear": pass', COMPARES),
        ("compiler/lower.py", 'x = [i for i in plan if i.op != "cast"]', COMPARES),
        ("compiler/lower.py", "x = instruction.op in ROW_WISE", COMPARES),
        ("compiler/lower.py", 'x = name in ("rms_norm", "layer_norm")', COMPARES),
        ("compiler/lower.py", 'x = "gate" == name', COMPARES),
        ("compiler/lower.py", 'match i.op:\n  case "add": pass', COMPARES),
        ("passes/fuse.py", 'x = op_name(node) == "linear"', COMPARES),
        ("passes/fuse.py", "x = op_name(node) in NAMES", COMPARES),
        ("runtime/engine.py", 'x = i.op.startswith("paged")', "takes the name of an op apart"),
        ("artifact/cost.py", 'X = {"linear": 2, "embedding": 1}', TABLE),
        ("passes/fuse.py", 'X = {"kv_write": f}', TABLE),
        ("compiler/lower.py", 'x = op_calls(gm, "linear")', "looks for calls of an op"),
        ("api.py", 'x = is_op(node, "linear")', "looks for calls of an op"),
    ],
)
def test_a_comparison_is_found(tmp_path, file, source, what):
    assert found(tmp_path, file, source) == [f"ingot/{file}:1: {what}"]


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("ops/linear.py", 'x = instruction.op == "linear"'),
        ("targets/cpu/groups.py", 'X = {"linear": 2}\nx = i.op in X'),
        ("artifact/traits.py", 'X = {"linear": 2}'),
        ("models/blocks/linear.py", 'becomes = {"linear": 1}'),
        ("models/rope.py", 'x = rope.type == "linear"'),
        ("passes/fuse.py", 'x = op_calls(gm, "linear")\ny = is_op(node, "linear")'),
        ("passes/fuse.py", 'x = node.op == "get_attr"\ny = n.op in ("placeholder", "output")'),
        ("compiler/lower.py", 'x = TRAITS[i.op].matrix\ny = OPS[i.op]\nz = {"x": 1, "linear": 2}'),
        ("compiler/lower.py", 'x = mode == "fast"\ny = name in ("linear", "other")'),
    ],
)
def test_what_compares_no_op_is_let_pass(tmp_path, file, source):
    assert found(tmp_path, file, source) == []
