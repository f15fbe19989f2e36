"""`EngineWatch`: the metrics of a model that its engine counts."""

from __future__ import annotations

from operator import lt, sub
from typing import Any

from ingot.runtime.metrics import EngineCounters
from ingot.serve.engine import ModelFacts
from ingot.serve.metrics.board import Board, Histogram
from ingot.serve.metrics.speed import SpeedWatch, Window

_COUNTED = {
    "num_preemptions": "num_preemptions",
    "spec_decode_num_drafts": "num_drafts",
    "spec_decode_num_draft_tokens": "num_draft_tokens",
    "spec_decode_num_accepted_tokens": "num_accepted_tokens",
    "sessions_given_up": "num_sessions_given_up",
}
_SNAPSHOTS = {
    "snapshot_hits": "num_hits",
    "snapshot_misses": "num_misses",
    "snapshot_wanted": "num_wanted",
    "snapshot_lost_tokens": "num_lost_tokens",
    "snapshot_evictions": "num_evictions",
}


class EngineWatch:
    """Follows the counters of an engine. They begin again at 0 when it is started again."""

    def __init__(self, board: Board, model: str, facts: ModelFacts) -> None:
        self.facts = facts
        self._board = board
        self._model = model
        self._speed = SpeedWatch()
        self._last = EngineCounters()
        self._reported = EngineCounters()
        self._judged = EngineCounters()
        self._latency = (0, 0.0)
        self._waiting = 0
        self._gauges = (
            "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "sessions",
            "prompt_cache_bytes",
        )  # fmt: skip
        self._slower = board.number("performance_regression", model)
        self._cache_labels = (model, str(facts.num_pages), str(facts.page_size))
        board.number("cache_config_info", *self._cache_labels).value = 1

    def take(self, now: EngineCounters, waiting: int) -> None:
        """Takes a snapshot, and how many requests wait before the engine."""
        number, model = self._board.number, self._model
        if _began_again(self._last, now):
            self._last = self._reported = self._judged = EngineCounters()
        last, self._last, self._waiting = self._last, now, waiting + now.num_waiting
        used = (now.num_pages - now.num_free_pages) / now.num_pages if now.num_pages else 0.0
        values = (
            now.num_running, self._waiting, used, now.num_sessions, now.prompt_cache.nbytes,
        )  # fmt: skip
        for name, value in zip(self._gauges, values, strict=True):
            number(name, model).value = value
        for name, field in _COUNTED.items():
            number(name, model).add(getattr(now, field) - getattr(last, field))
        found, before = now.prefix_cache, last.prefix_cache
        number("prefix_cache_queries", model).add(found.num_queries - before.num_queries)
        number("prefix_cache_hits", model).add(found.num_hits - before.num_hits)
        hits = now.prompt_cache.num_hits - last.prompt_cache.num_hits
        number("prompt_cache_hits", model).add(hits)
        for name, field in _SNAPSHOTS.items():
            number(name, model).add(getattr(now.snapshots, field) - getattr(last.snapshots, field))
        steps = map(sub, now.steps_by_size, last.steps_by_size)
        tokens = now.num_computed_tokens - last.num_computed_tokens
        self._board.histogram("iteration_tokens_total", model).add_counts(steps, tokens)

    def report(self, seconds: float) -> dict[str, Any] | None:
        """Summary of the engine's work in the seconds since the last report; None without work."""
        now, last = self._last, self._reported
        self._reported = now
        busy = now.num_steps > last.num_steps or now.num_running or self._waiting
        if not busy:
            return None
        computed = now.num_computed_tokens - last.num_computed_tokens
        generated = now.num_generated_tokens - last.num_generated_tokens
        in_vain = _num_in_vain(now) - _num_in_vain(last)
        queries = now.prefix_cache.num_queries - last.prefix_cache.num_queries
        hits = now.prefix_cache.num_hits - last.prefix_cache.num_hits
        used = 1 - now.num_free_pages / now.num_pages if now.num_pages else 0.0
        return {
            "prompt_tokens_per_s": round(max(computed - generated - in_vain, 0) / seconds, 1),
            "tokens_per_s": round(generated / seconds, 1),
            "running": now.num_running,
            "waiting": self._waiting,
            "kv_used_percent": round(100 * used, 1),
            "prefix_hit_percent": round(100 * hits / queries, 1) if queries else 0.0,
        }

    def judge(self, between_tokens: Histogram) -> dict[str, Any] | None:
        """Ends a window of time. Returns what to warn of: the model has become slower."""
        now, last = self._last, self._judged
        count, total = between_tokens.count, between_tokens.total
        gaps, seconds = count - self._latency[0], total - self._latency[1]
        self._judged, self._latency = now, (count, total)
        window = Window(
            num_steps=now.num_steps - last.num_steps,
            num_generated=now.num_generated_tokens - last.num_generated_tokens,
            num_computed=now.num_computed_tokens - last.num_computed_tokens,
            step_seconds=now.step_seconds - last.step_seconds,
            latency=seconds / gaps if gaps else 0.0,
        )
        baseline = self._speed.take(window)
        self._slower.value = float(self._speed.regressed)
        if baseline is None:
            return None
        return {
            "tokens_per_s": round(window.speed, 1),
            "tokens_per_s_before": round(baseline.speed, 1),
            "ms_per_token": round(1e3 * window.latency, 3),
            "ms_per_token_before": round(1e3 * baseline.latency, 3),
        }

    def forget(self) -> None:
        """Takes out what holds only while the model is loaded."""
        for name in (*self._gauges, "performance_regression"):
            self._board.forget(name, self._model)
        self._board.forget("cache_config_info", *self._cache_labels)


def _num_in_vain(counters: EngineCounters) -> int:
    """Guessed tokens that were computed and not accepted."""
    return counters.num_draft_tokens - counters.num_accepted_tokens


def _began_again(last: EngineCounters, now: EngineCounters) -> bool:
    """Returns whether the engine was restarted, which alone makes its counters fall."""
    fell = any(map(lt, now.steps_by_size, last.steps_by_size))
    return fell or now.num_steps < last.num_steps
