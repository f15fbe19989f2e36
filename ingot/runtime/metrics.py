"""Times of a request and counters of the engine, as plain values."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from time import perf_counter, time
from typing import Any

# What has been counted so far, by the names that it has in CacheCounters and EngineCounters.
Tally = defaultdict[str, Any]

# By how many tokens they compute, steps are counted: at most 1, 2, 5, 10 and so on, or more.
STEP_SIZES = tuple(m * 10**e for e in range(6) for m in (1, 2, 5))
NO_STEPS = (0,) * (len(STEP_SIZES) + 1)

# The beginning of 1970 by `time.perf_counter`. It is taken once: moments stay in order even where
# the system's clock is set back.
EPOCH = perf_counter() - time()


@dataclass(slots=True)
class Times:
    """Moments in the life of a sequence, by `time.perf_counter`; 0.0: not yet."""

    arrived: float = 0.0
    started: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMetrics:
    """Times of a request. None means that it has not happened.

    In seconds:

    queue_seconds         from its arrival until a step began to compute it
    ttft_seconds          from its arrival to its first token
    tpot_seconds          time of an output token after the first, on average
    total_seconds         from its arrival to its last token so far

    In seconds since 1970, under vLLM's names:

    arrival_time          when it came
    first_scheduled_time  when a step began to compute it
    first_token_time      when it got its first token
    last_token_time       when it got its last token so far
    finished_time         that of a finished request
    """

    num_prompt_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int
    num_preemptions: int
    queue_seconds: float | None
    ttft_seconds: float | None
    tpot_seconds: float | None
    total_seconds: float | None
    arrival_time: float
    first_scheduled_time: float | None
    first_token_time: float | None
    last_token_time: float | None
    finished_time: float | None

    # Other names that vLLM has had. What ends in `_ts` counts from elsewhere there; differences
    # are the same.
    @property
    def num_generation_tokens(self) -> int:
        return self.num_generated_tokens

    @property
    def time_in_queue(self) -> float | None:
        return self.queue_seconds

    @property
    def first_token_latency(self) -> float | None:
        return self.ttft_seconds

    @property
    def queued_ts(self) -> float:
        return self.arrival_time

    @property
    def scheduled_ts(self) -> float | None:
        return self.first_scheduled_time

    @property
    def first_token_ts(self) -> float | None:
        return self.first_token_time

    @property
    def last_token_ts(self) -> float | None:
        return self.last_token_time


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheCounters:
    """Counters of a cache.

    For the prefix cache, queries and hits count tokens, and entries count pages. For the logits
    cache all of them count prompts, and for the prompt cache files.
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
class SnapshotCounters:
    """Counters of the records that sequences of a model with slots go on from.

    Hits are sequences that went on from one, misses those that began. `num_wanted` counts those of
    both that found pages beyond their record, and `num_lost_tokens` the tokens of these pages,
    which are computed again. Entries are numbers of the moment.
    """

    num_entries: int = 0
    num_hits: int = 0
    num_misses: int = 0
    num_wanted: int = 0
    num_lost_tokens: int = 0
    num_evictions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCounters:
    """A snapshot of the engine.

    Running, waiting, free and sessions are numbers of the moment; all others count since it was
    opened. Sessions are given up where others need what they hold.
    `steps_by_size` are the steps that were begun, by STEP_SIZES; `num_steps` those that have ended.
    Drafts are guesses that steps computed; so many of their tokens were accepted.
    """

    num_steps: int = 0
    steps_by_size: tuple[int, ...] = NO_STEPS
    num_running: int = 0
    num_waiting: int = 0
    num_pages: int = 0
    num_free_pages: int = 0
    num_computed_tokens: int = 0
    num_generated_tokens: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_preemptions: int = 0
    num_finished: int = 0
    num_aborted: int = 0
    num_failed: int = 0
    num_sessions: int = 0
    num_sessions_given_up: int = 0
    step_seconds: float = 0.0
    kernel_seconds: float = 0.0
    sampler_seconds: float = 0.0
    prefix_cache: CacheCounters = CacheCounters()
    snapshots: SnapshotCounters = SnapshotCounters()
    logits_cache: CacheCounters = CacheCounters()
    prompt_cache: CacheCounters = CacheCounters()

    @property
    def acceptance_rate(self) -> float:
        """The part of the drafted tokens that were accepted; 0.0 where there were none."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0
