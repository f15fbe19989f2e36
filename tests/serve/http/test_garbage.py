"""Requests leave nothing behind that only Python's search for garbage would find: that is rare."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.serve.http.garbage_left import ASKED, FIELDS, TIMES


def test_requests_leave_no_garbage_and_a_cycle_would_show() -> None:
    command = [sys.executable, "-m", "tests.serve.http.garbage_left"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    left = json.loads(done.stdout)
    assert len(left.pop("a cycle a request")) == TIMES
    assert left == {f"{path} {name}": [] for path in ASKED for name in FIELDS}
