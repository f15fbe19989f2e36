"""Metrics as Prometheus reads them, held against its own parser."""

from __future__ import annotations

import re

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Histogram as TheirHistogram
from prometheus_client.parser import text_string_to_metric_families

from ingot.serve.metrics.board import Board
from ingot.serve.metrics.catalogue import BY_NAME, COUNTER, HISTOGRAM, METRICS

# vLLM's names that its dashboards and autoscalers ask for.
VLLM = """
num_requests_running num_requests_waiting kv_cache_usage_perc prefix_cache_queries_total
prefix_cache_hits_total num_preemptions_total prompt_tokens_total generation_tokens_total
spec_decode_num_drafts_total spec_decode_num_draft_tokens_total
spec_decode_num_accepted_tokens_total request_success_total
request_prompt_tokens_bucket request_generation_tokens_bucket
iteration_tokens_total_bucket request_max_num_generation_tokens_bucket request_params_n_bucket
request_params_max_tokens_bucket time_to_first_token_seconds_bucket
inter_token_latency_seconds_bucket e2e_request_latency_seconds_bucket
request_queue_time_seconds_bucket request_inference_time_seconds_bucket
request_prefill_time_seconds_bucket request_decode_time_seconds_bucket cache_config_info
""".split()


def families(board: Board):
    text, content_type = board.exposition()
    assert content_type.startswith("text/plain")
    return list(text_string_to_metric_families(text.decode()))


def filled(compat: bool = False) -> Board:
    board = Board(compat)
    for metric in METRICS:
        labels = ["x"] * len(metric.labels)
        if metric.kind == HISTOGRAM:
            board.histogram(metric.name, *labels).add(0.5, 2)
        else:
            board.number(metric.name, *labels).add(3)
    return board


def test_every_metric_is_exposed_with_its_kind_and_labels():
    found = {family.name: family for family in families(filled())}
    for metric in METRICS:
        family = found[f"ingot_{metric.name}"]
        assert family.type == metric.kind
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.labels)


def test_histograms_are_those_of_prometheus_client():
    values = [0.0, 0.0005, 0.001, 0.04, 0.041, 3.0, 2560.0, 1e9]
    bounds = BY_NAME["time_to_first_token_seconds"].bounds
    registry = CollectorRegistry()
    theirs = TheirHistogram(
        "ingot_time_to_first_token_seconds", "h", ["model_name"], buckets=bounds, registry=registry
    )
    board = Board()
    for value in values:
        theirs.labels("m").observe(value)
        board.histogram("time_to_first_token_seconds", "m").add(value)
    wanted = lines(generate_latest(registry).decode())
    assert wanted <= lines(board.exposition()[0].decode())
    assert len(wanted) == len(bounds) + 3  # with +Inf, the count and the sum


def lines(text: str) -> set[str]:
    return set(re.findall(r"^ingot_time_to_first_token_seconds_(?!created).*$", text, re.M))


def test_vllm_names_come_only_if_they_are_asked_for():
    def names(board: Board) -> set[str]:
        return {s.name for family in families(board) for s in family.samples if ":" in s.name}

    assert names(filled()) == set()
    exposed = names(filled(compat=True))
    assert {f"vllm:{name}" for name in VLLM} <= exposed


def test_an_alias_has_the_value_of_its_metric_and_the_label_engine():
    board = Board(compat=True)
    board.number("num_requests_running", "m").value = 7
    samples = {s.name: s for family in families(board) for s in family.samples}
    alias = samples["vllm:num_requests_running"]
    assert alias.value == samples["ingot_num_requests_running"].value == 7
    assert alias.labels == {"model_name": "m", "engine": "0"}


def test_labels_name_models_reasons_and_versions_alone():
    """No label can take as many values as clients like."""
    labels = {label for metric in METRICS for label in metric.labels}
    assert labels == {
        "model_name", "finished_reason", "reason", "status", "version", "num_gpu_blocks",
        "block_size", "task",
    }  # fmt: skip


def test_names_follow_the_rules_of_prometheus():
    for metric in METRICS:
        assert re.fullmatch(r"[a-z0-9_]+", metric.name)
        assert not metric.name.endswith("_total") or metric.kind != COUNTER
        assert list(metric.bounds) == sorted(set(metric.bounds))
        assert (metric.kind == HISTOGRAM) == bool(metric.bounds)


def test_a_series_that_is_forgotten_is_gone():
    board = Board()
    board.number("num_requests_running", "m").value = 1
    board.forget("num_requests_running", "m")
    board.forget("num_requests_running", "never")
    assert "ingot_num_requests_running{" not in board.exposition()[0].decode()


def test_labels_cannot_be_mixed_up():
    board = Board()
    with pytest.raises(AssertionError):
        board.number("num_requests_running")
    with pytest.raises(AssertionError):
        board.number("request_params_n", "m")


def test_only_what_vllm_has_is_told_under_its_names():
    known = {metric.name for metric in METRICS if metric.in_vllm}
    names = {family.name for family in Board(compat=True).collect()}
    theirs = {name.removeprefix("vllm:") for name in names if name.startswith("vllm:")}
    assert theirs == known
    assert not any(family.name.startswith("vllm:") for family in Board().collect())
