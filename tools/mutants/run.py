"""Plants single mistakes, one after the other, and tells which ones the tests find.

Each `tools/mutants/*.patch` is one plausible mistake. The line before its diff names the tests that
should find it, as in `# tests: tests/ops/test_traits.py tests/passes`; without one, the folder of
`tests/` that mirrors the changed file is taken. Mistakes are planted in a temporary git worktree of
HEAD.

    python -m tools.mutants.run [PART OF A NAME ...]
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = re.compile(r"# tests: (.+)")
SECONDS = 1200  # what the slowest folder of tests takes, several times over
CHANGED = re.compile(r"^\+\+\+ b/ingot/(.+)$", re.M)


@dataclass(frozen=True)
class Mutant:
    """One mistake, and the tests that should find it."""

    patch: Path
    tests: tuple[str, ...]


def read(patch: Path) -> Mutant:
    """Raises ValueError for a patch that changes nothing in ingot/."""
    text = patch.read_text()
    if named := TESTS.match(text):
        return Mutant(patch, tuple(named[1].split()))
    changed = CHANGED.search(text)
    if changed is None:
        raise ValueError(f"{patch.name} changes no file of ingot/")
    return Mutant(patch, (mirror(Path("tests") / Path(changed[1]).parent),))


def mirror(folder: Path) -> str:
    """The nearest folder that exists."""
    while not (ROOT / folder).is_dir():
        folder = folder.parent
    return str(folder)


def survives(mutant: Mutant, tree: Path) -> bool:
    """Plants a mistake in a clean worktree, runs its tests, and takes it out again.

    Tests that hang or crash have found the mistake, too.
    """
    git("apply", str(mutant.patch), at=tree)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *mutant.tests]
    environment = os.environ | {"PYTHONPATH": str(tree)}
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return False
    finally:
        git("checkout", "--quiet", ".", at=tree)
    # Passed; failed; could not even be collected; less than 0: crashed.
    if done.returncode > 2:
        raise RuntimeError(f"{mutant.patch.name}: pytest said {done.returncode}\n{done.stdout}")
    return done.returncode == 0


def applies(mutant: Mutant, tree: Path) -> bool:
    """Whether the code is still what the mistake was written for."""
    command = ["git", "apply", "--check", str(mutant.patch)]
    return subprocess.run(command, cwd=tree, capture_output=True).returncode == 0


def git(*arguments: str, at: Path = ROOT) -> None:
    subprocess.run(["git", *arguments], cwd=at, check=True)


def main(parts: list[str]) -> int:
    """Prints a line for each mistake, and how many survive or no longer apply to the code; returns
    1 if any survives."""
    patches = sorted(Path(__file__).parent.glob("*.patch"))
    chosen = [read(p) for p in patches if not parts or any(part in p.name for part in parts)]
    left = tried = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git("worktree", "add", "--quiet", "--detach", str(tree))
        try:
            for mutant in chosen:
                if not applies(mutant, tree):
                    print(f"stale     {mutant.patch.stem}", flush=True)
                    continue
                tried += 1
                survived = survives(mutant, tree)
                left += survived
                word = "SURVIVED" if survived else "killed"
                print(f"{word:<9} {mutant.patch.stem}", flush=True)
        finally:
            git("worktree", "remove", "--force", str(tree))
    print(f"{left} of {tried} survive; {len(chosen) - tried} no longer apply")
    return int(left > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
