"""What is counted of requests and engines, by a clock of the test's own."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest
from msgspec import structs
from prometheus_client.parser import text_string_to_metric_families

from ingot.errors import EngineDeadError
from ingot.runtime.metrics import CacheCounters, EngineCounters, RequestMetrics, SnapshotCounters
from ingot.serve.asked import Asked
from ingot.serve.engine import Piece, Progress
from ingot.serve.metrics.telemetry import Telemetry
from ingot.serve.refusal import QueueFull
from tests.support import fake_engine

FACTS = structs.replace(fake_engine.FACTS, num_pages=100)

METRICS = RequestMetrics(
    num_prompt_tokens=5,
    num_cached_tokens=2,
    num_generated_tokens=4,
    num_preemptions=0,
    queue_seconds=1.0,
    ttft_seconds=3.0,
    tpot_seconds=0.5,
    total_seconds=10.0,
    arrival_time=0.0,
    first_scheduled_time=None,
    first_token_time=None,
    last_token_time=None,
    finished_time=None,
)


BOUNDS = "1.0", "2.0", "5.0", "10.0", "20.0", "50.0", "+Inf"


def steps_of(*sizes: int) -> tuple[int, ...]:
    """Steps of so many tokens, counted as the engine counts them, but one by one."""
    bounds = [
        1,
        2,
        5,
        10,
        20,
        50,
        100,
        200,
        500,
        *(m * 10**e for e in (3, 4, 5) for m in (1, 2, 5)),
    ]
    counts = [0] * (len(bounds) + 1)
    for size in sizes:
        counts[sum(bound < size for bound in bounds)] += 1
    return tuple(counts)


class World:
    def __init__(self) -> None:
        self.now = 100.0
        self.telemetry = Telemetry(lambda: self.poll(), clock=lambda: self.now)
        self.counters = EngineCounters()

    async def poll(self):
        return {"m": (FACTS, self.counters)}

    def value(self, name: str, **labels: str) -> float | None:
        text = self.telemetry.board.exposition()[0].decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == f"ingot_{name}" and labels.items() <= sample.labels.items():
                    return sample.value
        return None

    def sums(self, *names: str) -> list[tuple[float | None, float | None]]:
        """Of histograms, how many values and their sum."""
        return [(self.value(f"{name}_count"), self.value(f"{name}_sum")) for name in names]

    def refresh(self, waiting: int = 0, **counters) -> None:
        self.counters = replace(self.counters, **counters)
        asyncio.run(self.telemetry.refresh({"m": waiting}))


@pytest.fixture
def world() -> World:
    return World()


def pieces(*tokens: int, reason: str | None = None, metrics=None) -> Progress:
    made = [
        Piece(index, "x", [1] * count, finish_reason=reason) for index, count in enumerate(tokens)
    ]
    return Progress(made, metrics is not None, metrics=metrics)


def test_a_request_is_timed_from_its_arrival(world):
    watch = world.telemetry.watch("m", began=90.0)
    with watch.until_end():
        asked = Asked(model="m", task="embed", num_prompt_tokens=5, num_sequences=2, max_tokens=9)
        watch.seated(2.0, asked)
        world.now = 103.0
        watch.see(pieces(1, 1))
        world.now = 104.0
        watch.see(pieces(1))
        world.now = 106.0
        watch.see(pieces(2, 1, reason="length", metrics=METRICS))
        world.now = 110.0
    assert world.sums("time_to_first_token_seconds") == [(1, 13.0)]
    assert world.sums("inter_token_latency_seconds") == [(3, 3.0)]  # 1 s, and twice half of 2 s
    assert world.sums("e2e_request_latency_seconds") == [(1, 20.0)]
    assert world.sums("request_queue_time_seconds") == [(1, 3.0)]
    assert world.sums("request_inference_time_seconds") == [(1, 9.0)]
    assert world.sums("request_prefill_time_seconds", "request_decode_time_seconds") == [
        (1, 2.0),
        (1, 7.0),
    ]
    assert world.sums("request_time_per_output_token_seconds") == [(1, 0.5)]
    assert world.sums("request_generation_tokens", "request_max_num_generation_tokens") == [
        (1, 6),
        (1, 4),
    ]
    assert world.sums("request_params_n", "request_params_max_tokens") == [(1, 2), (1, 9)]
    assert world.value("requests_of_task_total", task="embed") == 1
    assert world.value("prompt_tokens_total") == 5
    assert world.value("generation_tokens_total") == 6
    assert world.value("request_success_total", finished_reason="length") == 1
    assert watch.summary() == {
        "prompt_tokens": 5,
        "cached_tokens": None,
        "tokens": 6,
        "first_token_ms": 13000.0,
        "finish": "length",
    }


def test_a_request_that_is_told_of_at_its_end_is_timed_by_what_its_engine_says(world):
    watch = world.telemetry.watch("m", began=90.0)
    watch.see(pieces(4, 3, metrics=METRICS))
    assert world.sums("time_to_first_token_seconds") == [(1, 3.0)]  # it decoded for 7 s of the 10
    assert world.sums("inter_token_latency_seconds") == [(3, 1.5)]


def test_tokens_of_one_job_are_not_timed_by_those_of_another(world):
    watch = world.telemetry.watch("m")
    with watch.until_end():
        for job in (0, 1):
            watch.see(pieces(1), job)
        world.now += 2.0
        for job in (0, 1):
            watch.see(pieces(1), job)
    assert world.sums("inter_token_latency_seconds") == [(2, 4.0)]
    assert world.sums("time_to_first_token_seconds") == [(1, 0.0)]


def test_a_prompt_without_tokens_yet_is_no_first_token(world):
    watch = world.telemetry.watch("m")
    with watch.until_end():
        watch.see(Progress([], num_cached_tokens=4))
    assert world.sums("time_to_first_token_seconds") == [(0, 0.0)]
    assert watch.summary()["cached_tokens"] == 4


@pytest.mark.parametrize(
    ("error", "reason", "rejected"),
    [
        (QueueFull("full"), "error", "queue_full"),
        (EngineDeadError("dead"), "error", "EngineDeadError"),
        (RuntimeError("secret"), "error", "internal"),
    ],
)
def test_what_ends_with_an_error_is_counted_by_it(world, error, reason, rejected):
    with pytest.raises(type(error)), world.telemetry.watch("m").until_end():
        raise error
    assert world.value("request_success_total", finished_reason=reason) == 1
    assert world.value("requests_rejected_total", reason=rejected) == 1
    assert world.value("requests_cancelled_total") == 0


def test_a_client_that_leaves_is_counted(world):
    def leaves() -> None:
        with world.telemetry.watch("m").until_end():
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        leaves()
    assert world.value("requests_cancelled_total") == 1
    assert world.value("request_success_total", finished_reason="abort") == 1


def test_the_counters_of_engines_are_followed(world):
    prefixes = CacheCounters(num_queries=100, num_hits=40)
    world.refresh(
        waiting=3,
        num_steps=10,
        num_running=2,
        num_waiting=1,
        num_pages=100,
        num_free_pages=75,
        num_computed_tokens=50,
        steps_by_size=steps_of(*[1] * 8, 40, 2),
        num_preemptions=1,
        num_drafts=7,
        num_draft_tokens=30,
        num_accepted_tokens=20,
        prefix_cache=prefixes,
        snapshots=SnapshotCounters(
            num_hits=5, num_misses=4, num_wanted=3, num_lost_tokens=64, num_evictions=2
        ),
    )
    assert world.value("num_requests_running") == 2
    assert world.value("num_requests_waiting") == 4
    assert world.value("kv_cache_usage_perc") == 0.25
    assert world.value("prefix_cache_queries_total") == 100
    assert world.value("prefix_cache_hits_total") == 40
    assert world.value("snapshot_hits_total") == 5
    assert world.value("snapshot_misses_total") == 4
    assert world.value("snapshot_wanted_total") == 3
    assert world.value("snapshot_lost_tokens_total") == 64
    assert world.value("snapshot_evictions_total") == 2
    assert world.value("num_preemptions_total") == 1
    assert world.value("spec_decode_num_drafts_total") == 7
    assert world.value("spec_decode_num_draft_tokens_total") == 30
    assert world.value("spec_decode_num_accepted_tokens_total") == 20
    assert world.sums("iteration_tokens_total") == [(10, 50)]
    buckets = {bound: world.value("iteration_tokens_total_bucket", le=bound) for bound in BOUNDS}
    assert [*buckets.values()] == [8, 9, 9, 9, 9, 10, 10]
    assert world.value("cache_config_info", block_size="16", num_gpu_blocks="100") == 1


def test_counters_go_on_when_an_engine_is_started_again(world):
    ten, two = steps_of(*[1] * 10), steps_of(1, 1)
    world.refresh(num_steps=10, num_preemptions=5, num_computed_tokens=10, steps_by_size=ten)
    world.refresh(num_steps=2, num_preemptions=1, num_computed_tokens=2, steps_by_size=two)
    assert world.value("num_preemptions_total") == 6
    assert world.sums("iteration_tokens_total") == [(12, 12)]
    # One that has made as many steps, but others.
    other = steps_of(30, 30)
    world.refresh(num_steps=2, num_preemptions=1, num_computed_tokens=60, steps_by_size=other)
    assert world.sums("iteration_tokens_total") == [(14, 72)]


def test_a_model_that_is_unloaded_has_no_gauges_left(world):
    world.refresh(num_steps=1)

    async def nothing():
        return {}

    world.poll = nothing
    asyncio.run(world.telemetry.refresh({}))
    assert world.value("num_requests_running") is None
    assert world.value("cache_config_info") is None


def test_engines_that_do_not_answer_keep_their_numbers(world):
    world.refresh(num_steps=1, num_running=2)

    async def dead():
        raise EngineDeadError("dead")

    world.poll = dead
    asyncio.run(world.telemetry.refresh({}))
    assert world.value("num_requests_running") == 2


def test_the_log_has_a_line_of_load_only_while_there_is_any(world, caplog):
    caplog.set_level(logging.INFO, "ingot.serve")
    world.refresh(
        num_steps=10,
        num_computed_tokens=500,
        num_generated_tokens=100,
        num_pages=100,
        num_free_pages=90,
        prefix_cache=CacheCounters(num_queries=200, num_hits=50),
    )
    world.telemetry.report(10.0)
    world.telemetry.report(10.0)
    assert [record.fields for record in caplog.records] == [
        {
            "model": "m",
            "prompt_tokens_per_s": 40.0,
            "tokens_per_s": 10.0,
            "running": 0,
            "waiting": 0,
            "kv_used_percent": 10.0,
            "prefix_hit_percent": 25.0,
        }
    ]


def window(world: World, speed: float) -> None:
    """Lets an engine make 1,000 tokens in steps of 10 at a speed, and ends the window."""
    counters = world.counters
    world.refresh(
        num_steps=counters.num_steps + 100,
        num_generated_tokens=counters.num_generated_tokens + 1000,
        num_computed_tokens=counters.num_computed_tokens + 1000,
        step_seconds=counters.step_seconds + 1000 / speed,
    )
    world.telemetry.judge()


def test_a_model_that_gets_slower_raises_a_metric_and_a_warning(world, caplog):
    for _ in range(5):
        window(world, 1000.0)
    for _ in range(2):
        window(world, 500.0)
    assert world.value("performance_regression") == 0 and not caplog.records
    window(world, 500.0)
    window(world, 500.0)
    assert world.value("performance_regression") == 1
    [warning] = caplog.records
    assert warning.levelname == "WARNING"
    assert warning.fields["tokens_per_s"] == 500.0
    assert warning.fields["tokens_per_s_before"] == 1000.0
    window(world, 1000.0)
    assert world.value("performance_regression") == 0


def test_texts_are_kept_only_where_they_are_wanted(world):
    watch = world.telemetry.watch("m")
    watch.see(pieces(1))
    assert not {"prompt", "answer"} & watch.summary().keys()
    watch = world.telemetry.watch("m")
    watch.keep_texts(Asked(model="m", prompts=["one"]))
    for _ in range(2):
        watch.see(pieces(1))
    assert watch.summary().items() >= {"prompt": "one", "answer": "xx"}.items()
    watch = world.telemetry.watch("m")
    watch.keep_texts(Asked(model="m", prompts=["one", None]))
    watch.see(pieces(1, 1))
    assert watch.summary().items() >= {"prompt": '["one",null]', "answer": '["x","x"]'}.items()
