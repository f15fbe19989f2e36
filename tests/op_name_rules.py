"""Who may ask which op an instruction or a node is: the walk that finds code that compares names.

What an op is stands in its traits. Outside `ops/` and `targets/`, code neither compares
`instruction.op` or the name of a primitive with anything, nor has a table keyed by such names.
Passes find the primitive that they are about with `op_calls` and `is_op`; no other room does.
`onnx/operators.py` says which of them ONNX has an operator for, as a target says of its kernels.
Blocks of models say in `becomes` how many of each primitive they give, which decides nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from ingot.artifact.traits import TRAITS

MAY_COMPARE = ("ops/", "targets/")
MAY_HAVE_TABLES = ("artifact/traits.py", "models/", "onnx/operators.py")
MAY_LOOK_FOR_CALLS = ("passes/",)
NAMES = frozenset(TRAITS)
METHODS = {"startswith", "endswith", "removeprefix", "removesuffix", "partition", "split"}
SEARCHES = {"op_calls", "is_op"}
# Of nodes of a graph, `op` is their kind; these are its values.
KINDS_OF_NODES = {"placeholder", "get_attr", "call_function", "call_module", "output"}
# What else has values that are called like ops: the type of a rotary scaling is "linear".
OTHER_FIELDS = {"type"}


def comparisons(package: Path) -> list[str]:
    """Every place in the package where the name of an op decides something."""
    found: list[str] = []
    for file in sorted(package.rglob("*.py")):
        name = file.relative_to(package).as_posix()
        if name.startswith(MAY_COMPARE):
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        found += [f"{package.name}/{name}:{line}: {what}" for line, what in _found(tree, name)]
    return found


def _found(tree: ast.AST, file: str) -> list[tuple[int, str]]:
    return sorted(
        (node.lineno, what) for node in ast.walk(tree) if (what := _verdict(node, file)) is not None
    )


def _verdict(node: ast.AST, file: str) -> str | None:
    match node:
        case ast.Compare() if _compares_ops([node.left, *node.comparators]):
            return "compares the name of an op"
        case ast.Match() if _reads_op(node.subject):
            return "compares the name of an op"
        case ast.Call() if _is_method_of_op(node.func):
            return "takes the name of an op apart"
        case ast.Call() if _searches(node) and not file.startswith(MAY_LOOK_FOR_CALLS):
            return "looks for calls of an op"
        case ast.Dict() if _is_table(node) and not file.startswith(MAY_HAVE_TABLES):
            return "has a table keyed by names of ops"
    return None


def _compares_ops(operands: list[ast.expr]) -> bool:
    texts = {text for operand in operands for text in _texts(operand)}
    if texts and texts <= KINDS_OF_NODES:
        return False
    others = [o for o in operands if isinstance(o, ast.Attribute) and o.attr in OTHER_FIELDS]
    return any(map(_reads_op, operands)) or (bool(texts) and texts <= NAMES and not others)


def _reads_op(node: ast.expr) -> bool:
    """`x.op`, or `op_name(x)`."""
    if isinstance(node, ast.Attribute):
        return node.attr == "op"
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "op_name"
    )


def _is_method_of_op(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in METHODS and _reads_op(node.value)


def _is_table(node: ast.Dict) -> bool:
    keys = [key.value for key in node.keys if isinstance(key, ast.Constant)]
    return bool(keys) and set(keys) <= NAMES


def _searches(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Name) and node.func.id in SEARCHES


def _texts(node: ast.expr) -> Iterator[str]:
    """The texts of a literal, alone or in a tuple, list or set."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        for element in node.elts:
            yield from _texts(element)
