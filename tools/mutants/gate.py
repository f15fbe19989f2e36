"""Plants mistakes in the compiler and its kernels, and tells which ones the code gate refuses.

    python -m tools.mutants.gate MODEL [-o "OPTIONS OF A COMPILE"] [--rev REV] [PART OF A NAME ...]

A mistake is refused where a compile of the model fails with it. What the gate does not see, because
the model has no such part or results stay the same, is for the tests. `--rev` tries an older gate.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.mutants.run import ROOT, SECONDS, STALE, Mutant, applies, git, read

# What makes the numbers of an artifact.
MAKES = re.compile(r"^\+\+\+ b/ingot/(targets/(?!cuda)|passes/|ops/|compiler/(lower|quant))", re.M)
REFUSED, PASSED = "refused", "passed"
# A compile that asks its gate, and neither what is to blame nor what would help.
COMPILE = """
import sys
import ingot.cli.compile, ingot.compiling
from ingot.cli.main import main
ingot.cli.compile._blame = ingot.compiling.remedy = lambda *_: ""
sys.exit(main(sys.argv[1:]))
"""


def tried(mutant: Mutant, tree: Path, model: Path, options: Sequence[str], cache: Path) -> str:
    """What comes of a compile with a mistake; it is taken out again."""
    if not applies(mutant, tree):
        return STALE
    git("apply", str(mutant.patch), at=tree)
    try:
        return REFUSED if compile_fails(tree, model, options, cache) else PASSED
    finally:
        git("checkout", "--quiet", ".", at=tree)


def compile_fails(tree: Path, model: Path, options: Sequence[str], cache: Path) -> bool:
    """Whether a compile by the sources in a tree fails, hangs or crashes."""
    with tempfile.TemporaryDirectory() as folder:
        words = ("compile", str(model), "-o", f"{folder}/a.ingot", *options)
        environment = os.environ | {"PYTHONPATH": str(tree), "INGOT_CACHE": str(cache)}
        try:
            done = subprocess.run(
                [sys.executable, "-c", COMPILE, *words], cwd=tree, env=environment,
                capture_output=True, timeout=SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return True
    return done.returncode != 0


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a line for each mistake; returns 1 if a compile without any is refused."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants.gate", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("-o", "--options", type=shlex.split, default=[])
    parser.add_argument("--rev", default="HEAD")
    args = parser.parse_intermixed_args(argv)
    parts = args.parts or [""]
    chosen = [
        read(patch)
        for patch in sorted(Path(__file__).parent.glob("*.patch"))
        if MAKES.search(patch.read_text()) and any(part in patch.name for part in parts)
    ]
    with tempfile.TemporaryDirectory() as folder:
        tree, cache = Path(folder, "tree"), Path(folder, "cache")
        git("worktree", "add", "--quiet", "--detach", str(tree), args.rev)
        try:
            model = args.model.resolve()
            if compile_fails(tree, model, args.options, cache):
                print("a compile without a mistake is refused", file=sys.stderr)
                return 1
            for mutant in chosen:
                found = tried(mutant, tree, model, args.options, cache)
                print(f"{found:<9} {mutant.patch.stem}", flush=True)
        finally:
            git("worktree", "remove", "--force", str(tree), at=ROOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
