"""Steps whose threads lose their processors: units sleep where a busy host would hold them up."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest

from tests.targets.cpu.native import ModelStruct, load, step_of, step_struct

TARGET = "cpu:portable"
# The output says for how many milliseconds the second thread sleeps (0), a first one beside the
# caller (1), and the caller (2), whose id is 3. They are told which threads ran (from 4 on), and
# whether the step had few rows (7).
BODY = """
  int* told = output<int>(step, 0);
  const int thread = int(syscall(SYS_gettid));
  const int asleep = team.rank > 0 ? told[0] : thread == told[3] ? told[2] : told[1];
  const timespec time{0, asleep * 1'000'000L};
  nanosleep(&time, nullptr);
  __atomic_store_n(&told[4 + team.rank], thread, __ATOMIC_RELEASE);
  if (team.rank == 0) told[7] = few;
"""


@dataclass
class Model:
    lib: ctypes.CDLL
    handle: int
    told: np.ndarray = field(default_factory=lambda: np.zeros(8, np.int32))

    def __post_init__(self) -> None:
        self.told[3] = threading.get_native_id()
        self.step = step_struct([], [self.told], num_tokens=1)

    def run(self) -> None:
        assert self.lib.ingot_run(self.handle, ctypes.byref(self.step)) == 0

    def run_beside(self) -> None:
        self.lib.ingot_submit(self.handle, ctypes.byref(self.step))
        assert self.lib.ingot_wait(self.handle) == 0


@contextmanager
def opened(threads: int, arena_bytes: int = 0) -> Iterator[Model]:
    lib = load(step_of(TARGET, BODY, arena_bytes=arena_bytes), TARGET)
    handle = lib.ingot_open(ctypes.byref(ModelStruct(num_threads=threads)))
    assert handle
    try:
        yield Model(lib, handle)
    finally:
        lib.ingot_close(handle)


def test_a_thread_that_holds_up_the_team_is_left_out() -> None:
    with opened(2) as model:
        model.told[0] = 15
        for _ in range(40):
            model.told[5] = 0
            model.run()
            if not model.told[5]:
                break
        assert not model.told[5], "the second thread was in every step"


def test_a_step_that_is_held_up_beside_the_caller_runs_in_the_caller() -> None:
    with opened(1) as model:
        model.told[1:3] = 15, 1
        for _ in range(40):
            model.run_beside()
            if model.told[4] == model.told[3]:
                break
        assert model.told[4] == model.told[3], "every step ran beside the caller"


@pytest.mark.parametrize("arena_bytes, few", [(4096, 1), (1 << 37, 1), (1 << 46, 0)])
def test_threads_reserve_arenas_without_memory(arena_bytes: int, few: int) -> None:
    """Where there are not even addresses left, a step divides its work without them."""
    with opened(3, arena_bytes) as model:
        model.run()
        assert model.told[7] == few
