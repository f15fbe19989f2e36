"""Threads that sleep between steps are woken beside the caller, not where it runs."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tests.targets.cpu.native import ModelStruct, load, step_of, step_struct

TARGET = "cpu:portable"
# Tells the id of the second thread, and the processor that it runs on.
BODY = """
  int* told = output<int>(step, 0);
  if (team.rank > 0) {
    told[0] = int(syscall(SYS_gettid));
    told[1] = sched_getcpu();
  }
"""


@contextmanager
def pinned(processor: int) -> Iterator[None]:
    """This thread on one processor."""
    usual = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {processor})
    try:
        yield
    finally:
        os.sched_setaffinity(0, usual)


def sleeps(thread: int) -> bool:
    state = Path(f"/proc/self/task/{thread}/stat").read_text().rpartition(")")[2].split()[0]
    return state == "S"


def test_sleepers_wake_on_other_processors_and_may_run_on_any_later() -> None:
    lib, told = load(step_of(TARGET, BODY), TARGET), np.zeros(2, np.int32)
    handle = lib.ingot_open(ctypes.byref(ModelStruct(num_threads=2)))
    step = step_struct([], [told], num_tokens=1)
    processors = os.sched_getaffinity(0)
    assert lib.ingot_run(handle, ctypes.byref(step)) == 0
    thread, _ = told.tolist()
    assert thread != 0
    callers = sorted(processors) * 10
    beside = 0
    for caller in callers:
        with pinned(caller):
            while not sleeps(thread):
                os.sched_yield()
            assert lib.ingot_run(handle, ctypes.byref(step)) == 0
        beside += int(told[1]) != caller
        assert os.sched_getaffinity(thread) == processors
    lib.ingot_close(handle)
    # A busy host may move a thread as soon as it runs.
    assert beside > len(callers) / 2 or len(processors) == 1
