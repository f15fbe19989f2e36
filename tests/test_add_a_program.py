"""The page docs/add_a_program.md: its changes fit the code, and its program runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ingot.artifact.programs import PROGRAMS
from tests.import_rules import breaches
from tests.test_add_an_op import ROOT, copy_changed_by


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    """A folder with a copy of the package, changed as the page says, and the page's check."""
    return copy_changed_by("add_a_program.md", tmp_path)


@pytest.mark.thorough
def test_page_runs_from_a_directory_to_rows(changed: Path, shakespeare_dir: Path) -> None:
    assert breaches(changed / "ingot") == []
    paths = os.pathsep.join((str(changed), str(ROOT)))
    done = subprocess.run(
        [sys.executable, changed / "check.py", shakespeare_dir, changed / "a.ingot"],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "largest error" in done.stdout


def test_the_program_of_the_page_is_none_of_ours(changed: Path) -> None:
    assert "residual" not in PROGRAMS
