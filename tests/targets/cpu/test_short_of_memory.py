"""Kernels that get no memory, or no thread, when a model is opened."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.support.made_once import made_once

HERE = Path(__file__).parent
DEADLINE_SECONDS = 300  # kernels that lose a thread may wait for it for ever


@pytest.fixture(scope="module")
def told(shakespeare_artifact: Path) -> dict[str, Any]:
    """What open_short_of_memory.py says."""

    def compiled(folder: Path) -> None:
        out = folder / "fail.so"
        source = HERE / "fail_allocations.c"
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", source, "-o", out, "-ldl"], check=True)

    library = made_once("fail-allocations", compiled) / "fail.so"
    environment = {**os.environ, "LD_PRELOAD": str(library), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(HERE / "open_short_of_memory.py"), str(shakespeare_artifact)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=DEADLINE_SECONDS
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_every_request_that_fails_is_an_error_and_nothing_is_left_of_it(
    told: dict[str, Any],
) -> None:
    *failed, last = told["ends"]
    assert len(failed) > 10
    for number, (end, left, _) in enumerate(failed, start=1):
        # Without the memory of other threads' arenas, steps do with the first's.
        assert end in ("ResourceError", "MemoryError", told["wanted"]), number
        assert left == [], number
    assert sum(end == told["wanted"] for end, *_ in failed) == 1
    assert last[0] == told["wanted"], "beyond the last nothing fails"


def test_the_next_model_is_opened_and_right(told: dict[str, Any]) -> None:
    assert len(told["wanted"]) == 8
    assert all(right for *_, right in told["ends"])


def test_steps_ask_for_nothing(told: dict[str, Any]) -> None:
    assert told["steps"] == [0]
