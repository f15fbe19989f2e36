"""What a compile changes in its process, and puts back."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from contextlib import ExitStack

import pytest

from ingot.compiling import RARELY, _little_collected


@pytest.mark.parametrize("first_to_end", [0, 1])
def test_garbage_is_looked_for_as_before_once_all_compiles_have_ended(first_to_end: int) -> None:
    """Two of them run in two threads, and either may end first."""
    before = gc.get_threshold()
    stacks = [ExitStack(), ExitStack()]
    for stack in stacks:
        stack.enter_context(_little_collected())
        assert gc.get_threshold() == RARELY != before
    for index in (first_to_end, 1 - first_to_end):
        stacks[index].close()
    assert gc.get_threshold() == before


def test_a_compile_that_fails_puts_it_back_too() -> None:
    before = gc.get_threshold()
    with pytest.raises(ValueError, match="no model"), _little_collected():
        raise ValueError("no model")
    assert gc.get_threshold() == before


AT_THE_END = """
import atexit, gc
atexit.register(lambda: print(gc.get_freeze_count() > 0))
from ingot.compiling import _little_collected
with _little_collected():
    import {module}
"""


@pytest.mark.parametrize("module, frozen", [("json", "True"), ("triton", "False")])
def test_garbage_is_left_where_nobody_complains(module: str, frozen: str) -> None:
    """Triton's bindings print what is left over in the end, and PyTorch imports Triton."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", AT_THE_END.format(module=module)]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=True)
    assert (done.stdout.strip(), done.stderr) == (frozen, "")
