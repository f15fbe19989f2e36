"""Times of a request and counters of the engine, as plain values."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

# What has been counted so far, by the names that it has in CacheCounters and EngineCounters.
Tally = defaultdict[str, Any]


@dataclass(slots=True)
class Times:
    """Moments in the life of a sequence, by `time.perf_counter`; 0.0: not yet."""

    arrived: float = 0.0
    started: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMetrics:
    """How a request fared. Times are in seconds; None means that it has not happened.

    queue_seconds      from its arrival until a step began to compute it
    ttft_seconds       from its arrival to its first token
    tpot_seconds       time of an output token after the first, on average
    total_seconds      from its arrival to its last token so far
    """

    num_prompt_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int
    num_preemptions: int
    queue_seconds: float | None
    ttft_seconds: float | None
    tpot_seconds: float | None
    total_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheCounters:
    """How a cache fares.

    For the prefix cache, queries and hits count tokens, and entries count pages. For the logits
    cache all of them count prompts.
    """

    num_entries: int = 0
    num_queries: int = 0
    num_hits: int = 0
    num_evictions: int = 0
    nbytes: int = 0

    @property
    def hit_rate(self) -> float:
        return self.num_hits / self.num_queries if self.num_queries else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCounters:
    """A snapshot of the engine.

    Running, waiting and free are numbers of the moment; all others count since it was opened.
    """

    num_steps: int = 0
    num_running: int = 0
    num_waiting: int = 0
    num_pages: int = 0
    num_free_pages: int = 0
    num_computed_tokens: int = 0
    num_generated_tokens: int = 0
    num_preemptions: int = 0
    num_finished: int = 0
    num_aborted: int = 0
    num_failed: int = 0
    step_seconds: float = 0.0
    kernel_seconds: float = 0.0
    sampler_seconds: float = 0.0
    prefix_cache: CacheCounters = CacheCounters()
    logits_cache: CacheCounters = CacheCounters()
