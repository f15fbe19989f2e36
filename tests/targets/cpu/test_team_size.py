"""How many threads steps are given, on simulated hosts."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from tests.targets.cpu.native import built

SOURCE = """
#include "host_load.h"
#include "team_size.h"
#define EXPORT extern "C" __attribute__((visibility("default")))
EXPORT void* team_open(int most) { return new ingot::TeamSize(most); }
EXPORT int team_value(void* team) { return static_cast<ingot::TeamSize*>(team)->value(); }
EXPORT void team_begin(void* team, int free) {
  static_cast<ingot::TeamSize*>(team)->begin([=] { return free; });
}
EXPORT void team_learn(void* team, long end, long taken, long waited, int free) {
  static_cast<ingot::TeamSize*>(team)->learn({end, taken, waited}, [=] { return free; });
}
EXPORT int running_in(const char* text) { return ingot::running_threads(text); }
EXPORT int running_here() { return ingot::running_threads(); }
EXPORT int free_beside(int running) { return ingot::free_processors(running); }
EXPORT void team_close(void* team) { delete static_cast<ingot::TeamSize*>(team); }
"""
SECOND = 1_000_000_000
MICROSECOND = 1_000
UNKNOWN = 2**31 - 1

# What a step of a number of threads takes, and how long they are held up, in nanoseconds.
Host = Callable[[int], tuple[int, int]]


def library() -> ctypes.CDLL:
    return ctypes.CDLL(str(built((("step.cpp", SOURCE),), "cpu:portable").result()))


@dataclass
class Run:
    """Steps one after the other, and what they took at each size of the team."""

    most: int
    free: int = UNKNOWN  # processors, as the system says
    now: int = 0
    steps: int = 0
    spent: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.lib = library()
        self.lib.team_open.restype = ctypes.c_void_p
        self.lib.team_value.argtypes = [ctypes.c_void_p]
        self.lib.team_begin.argtypes = [ctypes.c_void_p, ctypes.c_int]
        self.lib.team_learn.argtypes = [ctypes.c_void_p, *[ctypes.c_long] * 3, ctypes.c_int]
        self.lib.team_close.argtypes = [ctypes.c_void_p]
        self.team = self.lib.team_open(self.most)

    def __del__(self) -> None:
        self.lib.team_close(self.team)

    def on(self, host: Host, seconds: float) -> Run:
        """Runs for so long; forgets what it spent and did before."""
        self.spent.clear()
        self.steps, end = 0, self.now + seconds * SECOND
        while self.now < end:
            self.lib.team_begin(self.team, self.free)
            size = self.lib.team_value(self.team)
            taken, waited = host(size)
            self.now += taken
            self.spent[size] += taken
            self.steps += 1
            self.lib.team_learn(self.team, self.now, taken, waited, self.free)
        return self

    def share(self, size: int) -> float:
        return self.spent[size] / self.spent.total()

    def speed(self) -> float:
        """Steps a second."""
        return self.steps / self.spent.total() * SECOND


def quiet(threads: int) -> tuple[int, int]:
    return 200 * MICROSECOND // threads, 0


def large(threads: int) -> tuple[int, int]:
    """As quiet, with more to do: a large team takes fewer steps in the same time."""
    return 1600 * MICROSECOND // threads, 0


def shared(threads: int) -> tuple[int, int]:
    """Others take a processor: threads that need each other stand still for most of the time."""
    if threads == 1:
        return 210 * MICROSECOND, 0
    return 700 * MICROSECOND, 600 * MICROSECOND


def crowded(threads: int) -> tuple[int, int]:
    if threads == 1:
        return 500 * MICROSECOND, 0
    return 20_000 * MICROSECOND, 19_000 * MICROSECOND


def uneven(threads: int) -> tuple[int, int]:
    """Threads wait, but two are nevertheless faster than one."""
    return (1500 * MICROSECOND, 800 * MICROSECOND) if threads == 2 else (2000 * MICROSECOND, 0)


def best(host: Host) -> float:
    return max(SECOND / host(threads)[0] for threads in (1, 2))


def test_a_quiet_host_gives_every_step_all_threads() -> None:
    assert Run(2).on(quiet, 10).spent.keys() == {2}
    assert Run(16).on(quiet, 1).spent.keys() == {16}
    assert Run(16).on(large, 10).spent.keys() == {16}


def test_a_team_of_one_never_changes() -> None:
    assert Run(1).on(shared, 1).spent.keys() == {1}


def slow(host: Host) -> Host:
    """The same host, for a model whose steps take 100 times as long."""
    return lambda threads: tuple(100 * part for part in host(threads))  # type: ignore[return-value]


@pytest.mark.parametrize("host", [shared, crowded, slow(shared), slow(crowded)])
def test_nothing_is_tried_while_no_processor_is_free(host: Host) -> None:
    run = Run(2, free=1).on(host, 3)
    assert run.spent.keys() == {1}
    assert run.on(host, 3).spent.keys() == {1, 2}, "the count may deceive"
    assert run.on(host, 100).speed() > 0.94 * best(host)


@pytest.mark.parametrize("host", [quiet, slow(quiet)])
def test_threads_come_as_soon_as_processors_are_free(host: Host) -> None:
    run = Run(16, free=1).on(host, 1)
    assert run.spent.keys() == {1}
    run.free = UNKNOWN
    assert run.on(host, 2).share(16) > 0.75
    assert run.on(host, 2).spent.keys() == {16}


def test_free_processors_that_are_more_than_threads_change_nothing() -> None:
    assert Run(2, free=5).on(quiet, 1).spent.keys() == {2}


@pytest.mark.parametrize("text, count", [
    (b"0.52 0.41 0.30 3/250 4711\n", 3), (b"12.00 8.1 9.0 41/1200 9", 41), (b"", 0), (b"/", 0),
    (b"1.0 2.0", 0), (b"0.1 0.2 0.3 x/250 1", 0), (b"9/2", 9), (b"0.1 0.2 0.3 9999999999/2 1", 0),
])  # fmt: skip
def test_running_threads_are_read(text: bytes, count: int) -> None:
    assert library().running_in(text) == count
    assert library().running_here() >= 1  # this one


def test_others_take_the_processors_that_they_run_on() -> None:
    """By a process that may use all processors, and by one that may use a single one."""
    code = """if True:
        import ctypes, os, sys
        lib, processors = ctypes.CDLL(sys.argv[1]), os.sysconf("SC_NPROCESSORS_ONLN")
        os.sched_setaffinity(0, range(processors))
        assert lib.free_beside(1) == processors
        assert lib.free_beside(2) == max(1, processors - 1)
        assert lib.free_beside(100_000) == 1
        assert lib.free_beside(0) == 2**31 - 1
        os.sched_setaffinity(0, {0})
        assert lib.free_beside(2) == (2**31 - 1 if processors > 1 else 1)
    """
    path = str(built((("step.cpp", SOURCE),), "cpu:portable").result())
    subprocess.run([sys.executable, "-c", code, path], check=True)


@pytest.mark.parametrize("host", [shared, crowded])
def test_threads_that_are_held_up_are_given_up(host: Host) -> None:
    run = Run(2).on(host, 0.2)
    assert run.share(1) > 0.6
    assert run.on(host, 10).speed() > 0.95 * best(host)


def test_threads_come_back_once_the_host_is_quiet() -> None:
    run = Run(2).on(crowded, 5).on(quiet, 3)
    assert run.share(2) > 0.4
    assert run.on(quiet, 10).spent.keys() == {2}


def test_held_up_threads_stay_where_fewer_are_slower() -> None:
    assert Run(2).on(uneven, 10).speed() > 0.95 * best(uneven)


def test_threads_go_again_when_work_comes_back() -> None:
    run = Run(2)
    for _ in range(3):
        run.on(quiet, 2)
        assert run.on(shared, 2).speed() > 0.9 * best(shared)


@pytest.mark.parametrize("free", [1, 3, 8, 13])
def test_a_large_team_settles_near_the_free_processors(free: int) -> None:
    def host(threads: int) -> tuple[int, int]:
        taken = 1600 * MICROSECOND // threads
        return (taken, 0) if threads <= free else (taken * 20, taken * 19 * (threads - 1))

    run = Run(16)
    run.on(host, 2)
    assert run.on(host, 10).speed() > 0.7 * SECOND / host(free)[0]


def test_steps_longer_than_a_trial_are_tried_one_by_one() -> None:
    def long(threads: int) -> tuple[int, int]:
        return tuple(1000 * part for part in shared(threads))  # type: ignore[return-value]

    assert Run(2).on(long, 100).speed() > 0.9 * best(long)
