"""Prints how large the project is, and how it is divided. For the eye only."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

from tools.structure import Structure, table

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("ingot", "tests", "bench", "tools", "docs")
SUFFIXES = {".py", ".h", ".cpp", ".md"}
LONG_FILE, LONG_FUNCTION, MANY_PARAMETERS = 400, 40, 8
KERNELS, MANY_OF_A_KERNEL = "targets/cuda/kernels", 12


def lines_by_folder() -> Counter[str]:
    """Lines of every room of ingot/, and of every other folder as a whole."""
    lines: Counter[str] = Counter()
    for folder in FOLDERS:
        for file in (ROOT / folder).rglob("*"):
            if file.suffix in SUFFIXES and file.is_file():
                parts = file.relative_to(ROOT).parts[:-1]
                depth = 2 if folder == "ingot" else 1
                lines["/".join(parts[:depth]) + "/"] += len(file.read_text().splitlines())
    return lines


def over_budget() -> list[str]:
    """Files and functions of ingot/ that are longer than the house's budgets."""
    found = many_parameters(ROOT / "ingot")
    for file in sorted((ROOT / "ingot").rglob("*.py")):
        text, name = file.read_text(), file.relative_to(ROOT)
        if (count := len(text.splitlines())) > LONG_FILE:
            found.append(f"{name}: {count} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > LONG_FUNCTION:
                    found.append(f"{name}:{node.lineno}: {node.name} has {length} lines")
    return found


def many_parameters(package: Path) -> list[str]:
    """Functions that take too many parameters.

    Kernels may take some more. References of ops may take any number: their parameters are the
    schema that graphs and plans have.
    """
    found = []
    for file in sorted(package.rglob("*.py")):
        of_kernels = package / KERNELS in file.parents
        most = MANY_OF_A_KERNEL if of_kernels else MANY_PARAMETERS
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                if node.name == "reference" and file.parent.name == "ops":
                    continue
                names = {a.arg for a in (*node.args.posonlyargs, *node.args.args)}
                count = len(names - {"self", "cls"}) + len(node.args.kwonlyargs)
                if count > most:
                    name = file.relative_to(package.parent)
                    found.append(f"{name}:{node.lineno}: {node.name} has {count} parameters")
    return found


def main() -> None:
    from ingot.models.registry import families
    from ingot.ops import registry as ops
    from ingot.passes.pipeline import pipeline

    lines = lines_by_folder()
    for folder, count in sorted(lines.items()):
        print(f"{count:7,}  {folder}")
    print(f"{lines.total():7,}  all")
    architectures = sum(len(family.architectures) for family in families().values())
    print(f"\n{len(pipeline())} passes, {len(ops.OPS)} ops, {architectures} architectures")
    print()
    for what, count in table(Structure.of(ROOT / "ingot"), "ingot.runtime"):
        print(f"{count:7,}  {what}")
    if found := over_budget():
        print("\nover budget:\n  " + "\n  ".join(found))


if __name__ == "__main__":
    main()
