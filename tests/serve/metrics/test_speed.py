"""When a model counts as slower than it was."""

from __future__ import annotations

from ingot.runtime.metrics import EngineCounters
from ingot.serve.metrics.board import Board
from ingot.serve.metrics.engine_watch import EngineWatch
from ingot.serve.metrics.speed import SpeedWatch, Window
from tests.support.fake_engine import FACTS


def window(speed: float = 1000.0, latency: float = 0.01, tokens: int = 8, steps: int = 100):
    generated = tokens * steps
    return Window(steps, generated, generated, generated / speed, latency)


def settled() -> SpeedWatch:
    watch = SpeedWatch()
    for speed in (900.0, 1000.0, 1100.0, 1000.0, 5000.0):  # the median is 1000
        assert watch.take(window(speed)) is None
    return watch


def test_the_third_worse_window_in_a_row_is_a_regression():
    watch = settled()
    assert [bool(watch.take(window(700.0))) for _ in range(4)] == [False, False, True, False]
    assert watch.regressed
    watch.take(window(1000.0))
    assert not watch.regressed


def test_worse_windows_that_are_not_in_a_row_are_none():
    watch = settled()
    for speed in (700.0, 700.0, 1000.0) * 5:
        watch.take(window(speed))
        assert not watch.regressed


def test_a_little_slower_is_within_the_tolerance():
    watch = settled()
    for _ in range(10):
        watch.take(window(760.0, latency=0.012))
    assert not watch.regressed


def test_latency_counts_by_itself():
    watch = settled()
    for _ in range(3):
        watch.take(window(latency=0.02))
    assert watch.regressed


def test_slow_decay_is_found_because_the_baseline_stays():
    watch = settled()
    speeds = [1000.0 * 0.97**number for number in range(20)]
    assert any(watch.take(window(speed)) for speed in speeds)


def test_another_load_has_a_baseline_of_its_own():
    """One sequence alone makes fewer tokens a second than eight, and is no regression."""
    watch = settled()
    for _ in range(10):
        watch.take(window(150.0, tokens=1))
    assert not watch.regressed
    for _ in range(3):
        watch.take(window(90.0, tokens=1))
    assert watch.regressed


def test_windows_with_little_work_tell_nothing():
    watch = settled()
    for _ in range(10):
        watch.take(window(1.0, steps=10))
        watch.take(Window(0, 0, 0, 0.0, 0.0))
        watch.take(Window(100, 0, 500, 1.0, 0.0))
    assert not watch.regressed


def test_the_work_of_an_engine_that_was_started_again_is_its_own(monkeypatch):
    windows = []
    monkeypatch.setattr(SpeedWatch, "take", lambda self, window: windows.append(window))
    board = Board()
    watch = EngineWatch(board, "m", FACTS)
    for steps in (1000, 60, 100):
        watch.take(EngineCounters(num_steps=steps, num_generated_tokens=3 * steps), 0)
        watch.judge(board.histogram("inter_token_latency_seconds", "m"))
    found = [(window.num_steps, window.num_generated) for window in windows]
    assert found == [(1000, 3000), (60, 180), (40, 120)]


def test_guesses_that_were_wrong_are_no_tokens_of_prompts():
    watch = EngineWatch(Board(), "m", FACTS)
    counted = {"num_computed_tokens": 100, "num_generated_tokens": 20}
    guessed = {"num_draft_tokens": 30, "num_accepted_tokens": 10}
    watch.take(EngineCounters(num_steps=10, **counted, **guessed), 0)
    told = watch.report(2.0)
    assert told["prompt_tokens_per_s"] == (100 - 20 - (30 - 10)) / 2
