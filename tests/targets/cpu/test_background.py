"""Steps that run beside the caller, by a unit whose threads stay in a step until they may leave."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest

from tests.targets.cpu.native import ModelStruct, load, step_of, step_struct

TARGET = "cpu:portable"
# The output is the gate, and the id of the thread of each rank.
BODY = """
  int* gate = output<int>(step, 0);
  __atomic_store_n(&gate[1 + team.rank], int(syscall(SYS_gettid)), __ATOMIC_RELEASE);
  while (__atomic_load_n(gate, __ATOMIC_ACQUIRE) == 0) sched_yield();
"""
SECONDS = 60.0


@dataclass
class GatedStep:
    lib: ctypes.CDLL
    handle: int
    gate: np.ndarray = field(default_factory=lambda: np.zeros(8, np.int32))

    def submit(self, num_tokens: int = 1) -> None:
        self.struct = step_struct([], [self.gate], num_tokens=num_tokens)
        self.lib.ingot_submit(self.handle, ctypes.byref(self.struct))

    def wait(self) -> int:
        return int(self.lib.ingot_wait(self.handle))

    def close(self) -> None:
        handle, self.handle = self.handle, 0
        if handle:
            self.lib.ingot_close(handle)

    def open_gate(self) -> None:
        self.gate[0] = 1

    def threads(self) -> list[int]:
        return [int(thread) for thread in self.gate[1:] if thread]


@contextmanager
def gated_step(threads: int) -> Iterator[GatedStep]:
    lib = load(step_of(TARGET, BODY), TARGET)
    step = GatedStep(lib, lib.ingot_open(ctypes.byref(ModelStruct(num_threads=threads))))
    try:
        yield step
    finally:
        step.open_gate()
        step.close()


def comes_true(condition: Callable[[], bool], seconds: float = SECONDS) -> bool:
    """Whether it does before the time is up; what it asks about wakes nobody."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        os.sched_yield()
    return condition()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_step_has_all_its_threads_while_the_caller_goes_on(threads: int) -> None:
    with gated_step(threads) as step:
        step.submit()
        assert comes_true(lambda: len(step.threads()) == threads)
        assert len(set(step.threads())) == threads
        assert threading.get_native_id() not in step.threads()
        step.open_gate()
        assert step.wait() == 0


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("call", ["wait", "close"])
def test_both_ends_of_a_step_wait_for_it(call: str, threads: int) -> None:
    with gated_step(threads) as step:
        step.submit()
        assert comes_true(lambda: len(step.threads()) == threads)
        waits = threading.Thread(target=getattr(step, call))
        waits.start()
        waits.join(0.2)  # longer than it waits awake
        assert waits.is_alive()
        step.open_gate()
        waits.join(SECONDS)
        assert not waits.is_alive()


def test_a_step_that_nobody_waits_for_is_over_before_the_model_is_closed() -> None:
    for _ in range(100):
        with gated_step(2) as step:
            step.open_gate()
            step.submit()
            step.close()
            assert len(step.threads()) == 2


def test_a_step_that_is_refused_says_so_once_it_is_waited_for() -> None:
    with gated_step(2) as step:
        step.open_gate()
        for num_tokens in (-1, 1, -1):
            step.submit(num_tokens)
            assert step.wait() == min(num_tokens, 0)


def test_steps_follow_one_another_in_both_ways() -> None:
    caller = threading.get_native_id()
    with gated_step(2) as step:
        step.open_gate()
        firsts, seconds = set(), set()
        for _ in range(1000):
            step.gate[1:] = 0
            step.submit()
            assert step.wait() == 0
            firsts.add(step.gate[1])
            seconds.add(step.gate[2])
            step.gate[1:] = 0
            assert step.lib.ingot_run(step.handle, ctypes.byref(step.struct)) == 0
            assert step.gate[1] == caller
            seconds.add(step.gate[2])
        assert len(firsts - {caller}) == 1
        assert len(seconds - {0}) == 1  # 0: a busy host has left the step to one thread


def test_closing_leaves_no_thread() -> None:
    def alive() -> set[int]:
        return set(map(int, os.listdir("/proc/self/task")))

    with gated_step(3) as step:
        step.open_gate()
        step.submit()
        assert step.wait() == 0
        threads = set(step.threads())
        assert len(threads & alive()) == 3
    assert comes_true(lambda: not threads & alive())
