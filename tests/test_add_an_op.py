"""The page docs/add_an_op.md: its changes fit the code, and its op runs from graph to kernel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ingot.artifact.traits import TRAITS
from tests.import_rules import breaches
from tests.support.pages import blocks

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    """A folder with a copy of the package, changed as the page says, and the page's check."""
    return copy_changed_by("add_an_op.md", tmp_path)


def copy_changed_by(page: str, folder: Path) -> Path:
    """The folder, with a copy of the package that a page has changed, and the page's new files."""
    skipped = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "ingot", folder / "ingot", ignore=skipped)
    for name, text in blocks(page, "python"):
        assert not (folder / name).exists()
        (folder / name).write_text(text)
    for name, text in blocks(page, "diff"):
        apply(text, folder / name)
    return folder


def apply(diff: str, path: Path) -> None:
    """Changes a file; the lines that a diff shows around its changes must be there, once."""
    lines = diff.splitlines(keepends=True)
    before = "".join(line[1:] for line in lines if not line.startswith("+"))
    after = "".join(line[1:] for line in lines if not line.startswith("-"))
    text = path.read_text()
    assert text.count(before) == 1, f"{path.name} has no such place:\n{before}"
    path.write_text(text.replace(before, after))


@pytest.mark.thorough
def test_page_runs_from_graph_to_kernel(changed: Path) -> None:
    assert breaches(changed / "ingot") == []
    paths = os.pathsep.join((str(changed), str(ROOT)))
    done = subprocess.run(
        [sys.executable, changed / "check.py"],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "lower_clips: 2 of 2" in done.stdout and "relative error" in done.stdout


def test_a_change_that_fits_nowhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("one\ntwo\nthree\n")
    apply(" one\n-two\n+2\n three\n", path)
    assert path.read_text() == "one\n2\nthree\n"
    with pytest.raises(AssertionError, match=r"a\.py has no such place"):
        apply(" two\n+2\n", path)


def test_the_op_of_the_page_is_none_of_ours() -> None:
    assert "clip" not in TRAITS
