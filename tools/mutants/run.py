"""Plants single mistakes, one after the other, and tells which ones the tests find.

Each `tools/mutants/*.patch` is one plausible mistake. The line before its diff names the tests that
should find it, as in `# tests: tests/ops/test_traits.py tests/passes`; without one, the folder of
`tests/` that mirrors the changed file is taken. Mistakes are planted in temporary git worktrees of
HEAD, whose tests share what they build with those of this checkout.

    python -m tools.mutants.run [--jobs 2] [PART OF A NAME ...]

A line for each says which tests found it: those of `make test`, the further ones of
`make test-all`, or those of `make test-slow`.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from tests.support.kept_builds import PLACE, kept_folder
from tests.support.times import CORE

ROOT = Path(__file__).resolve().parents[2]
TESTS = re.compile(r"# tests: (.+)")
SECONDS = 1200  # what the slowest folder of tests takes, several times over
TIERS = {"core": CORE, "thorough": "thorough and not slow", "slow": "slow"}
SURVIVED, STALE = "SURVIVED", "stale"
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


def finder(mutant: Mutant, tree: Path) -> str:
    """Plants a mistake in a clean worktree, runs its tests, and takes it out again.

    Returns the name of the tier that found it; SURVIVED if none did, and STALE for a mistake that
    cannot be planted.
    """
    if not applies(mutant, tree):
        return STALE
    git("apply", str(mutant.patch), at=tree)
    try:
        return next((name for name, marks in TIERS.items() if finds(mutant, marks, tree)), SURVIVED)
    finally:
        git("checkout", "--quiet", ".", at=tree)


def finds(mutant: Mutant, marks: str, tree: Path) -> bool:
    """Whether tests with those marks fail. Tests that hang or crash have found the mistake, too."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", marks]
    # What a front is made of differs in each worktree, what is compiled of it seldom.
    shared = {"PYTHONPATH": str(tree), PLACE: str(kept_folder())}
    try:
        done = subprocess.run(
            [*command, *mutant.tests], cwd=tree, env=os.environ | shared, capture_output=True,
            text=True, timeout=SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return True
    # Passed; failed; could not even be collected; none with those marks; less than 0: crashed.
    if done.returncode not in (0, 1, 2, 5) and done.returncode > 0:
        raise RuntimeError(f"{mutant.patch.name}: pytest said {done.returncode}\n{done.stdout}")
    return done.returncode not in (0, 5)


def applies(mutant: Mutant, tree: Path) -> bool:
    """Whether the code is still what the mistake was written for."""
    command = ["git", "apply", "--check", str(mutant.patch)]
    return subprocess.run(command, cwd=tree, capture_output=True).returncode == 0


def git(*arguments: str, at: Path = ROOT) -> None:
    subprocess.run(["git", *arguments], cwd=at, check=True)


@contextmanager
def worktrees(count: int) -> Iterator[SimpleQueue[Path]]:
    """So many clean trees of HEAD, until the end."""
    trees: SimpleQueue[Path] = SimpleQueue()
    made: list[Path] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for number in range(count):
                made.append(Path(folder, f"tree-{number}"))
                git("worktree", "add", "--quiet", "--detach", str(made[-1]))
                trees.put(made[-1])
            yield trees
        finally:
            for tree in made:
                git("worktree", "remove", "--force", str(tree))


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a line for each mistake, and how many each tier finds; returns 1 if any survives."""
    args = _parser().parse_args(argv)
    patches = sorted(Path(__file__).parent.glob("*.patch"))
    parts = args.parts or [""]
    chosen = [read(patch) for patch in patches if any(part in patch.name for part in parts)]
    found: Counter[str] = Counter()
    with worktrees(args.jobs) as trees, ThreadPoolExecutor(args.jobs) as pool:

        def in_a_tree(mutant: Mutant) -> str:
            tree = trees.get()
            try:
                return finder(mutant, tree)
            finally:
                trees.put(tree)

        for mutant, name in zip(chosen, pool.map(in_a_tree, chosen), strict=True):
            found[name] += 1
            print(f"{name:<9} {mutant.patch.stem}", flush=True)
    print(", ".join(f"{found[name]} {name}" for name in (*TIERS, SURVIVED, STALE)))
    return int(found[SURVIVED] > 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.mutants.run", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="of the names of patches")
    parser.add_argument("--jobs", type=int, default=1, help="how many are tried at once")
    return parser


if __name__ == "__main__":
    sys.exit(main())
