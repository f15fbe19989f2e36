from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc
from ingot.serve.garbage import search_rarely

before = gc.get_threshold()
search_rarely()
frozen = gc.get_freeze_count()
assert frozen > 1000 and gc.get_threshold() > before, (frozen, gc.get_threshold())
cycle = []
cycle.append(cycle)
del cycle
assert gc.collect() > 0  # what comes later is still looked through
"""


def test_what_is_there_is_looked_through_no_more_and_what_comes_rarely() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
