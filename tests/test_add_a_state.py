"""The page docs/add_a_state.md: its changes fit the code, and its state runs on both targets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ingot.artifact.traits import TRAITS
from tests.import_rules import breaches
from tests.test_add_an_op import ROOT, copy_changed_by


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    """A folder with a copy of the package, changed as the page says, and the page's check."""
    return copy_changed_by("add_a_state.md", tmp_path)


def run(changed: Path, script: Path, *arguments: str, **env: str) -> str:
    paths = os.pathsep.join((str(changed), str(ROOT)))
    done = subprocess.run(
        [sys.executable, script, *arguments],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **env},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.thorough
def test_page_runs_from_graph_to_both_targets(changed: Path) -> None:
    assert breaches(changed / "ingot") == []
    said = run(changed, changed / "check.py")
    assert "all bits are the same" in said
    said = run(changed, ROOT / "tests" / "slotted_on_a_card.py", TRITON_INTERPRET="1")
    assert "all bits are the same" in said


@pytest.mark.thorough
def test_sessions_keep_the_state_of_the_page(changed: Path) -> None:
    said = run(changed, ROOT / "tests" / "sessions_of_a_state.py", "cpu")
    assert "all bits are the same" in said


@pytest.mark.slow
def test_sessions_keep_the_state_of_the_page_on_a_card(changed: Path) -> None:
    script = ROOT / "tests" / "sessions_of_a_state.py"
    assert "all bits are the same" in run(changed, script, "card", TRITON_INTERPRET="1")


def test_the_op_of_the_page_is_none_of_ours(changed: Path) -> None:
    assert "fade" not in TRAITS
