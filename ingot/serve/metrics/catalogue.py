"""The metrics of the server: their names, meanings and buckets. Names of vLLM mean what they mean
there."""

from __future__ import annotations

from typing import NamedTuple

from ingot.runtime.metrics import STEP_SIZES

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

# Upper bounds in seconds, those of vLLM. Its shortest time between tokens is 10 ms; ours begin
# below, for small models.
_FIRST_TOKEN = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
_BETWEEN_TOKENS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3,
    0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_REQUEST = (
    0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0,
    60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
_LAG = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
_TOKENS = tuple(map(float, STEP_SIZES))
_SEQUENCES = (1.0, 2.0, 5.0, 10.0, 20.0)


class Metric(NamedTuple):
    """A metric: its name without prefix, and with `in_vllm` whether vLLM has it too."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ("model_name",)
    bounds: tuple[float, ...] = ()
    in_vllm: bool = False


def _vllm(name: str, kind: str, help: str, bounds: tuple[float, ...] = ()) -> Metric:
    return Metric(name, kind, help, bounds=bounds, in_vllm=True)


METRICS = (
    _vllm("num_requests_running", GAUGE, "Requests that have a seat of the engine."),
    _vllm("num_requests_waiting", GAUGE, "Requests that wait for a seat."),
    _vllm("kv_cache_usage_perc", GAUGE, "Part of the KV cache's pages in use, from 0 to 1."),
    _vllm("prefix_cache_queries", COUNTER, "Prompt tokens that were looked up in the cache."),
    _vllm("prefix_cache_hits", COUNTER, "Prompt tokens that were found in the cache."),
    Metric("snapshot_hits", COUNTER, "Sequences that went on from the record of another."),
    Metric("snapshot_misses", COUNTER, "Sequences that found no record to go on from."),
    Metric("snapshot_wanted", COUNTER, "Sequences that found pages beyond the last record."),
    Metric("snapshot_lost_tokens", COUNTER, "Tokens computed twice for want of a record."),
    Metric("snapshot_evictions", COUNTER, "Records that made room for others."),
    _vllm("num_preemptions", COUNTER, "Times that a sequence gave up its place."),
    _vllm("spec_decode_num_drafts", COUNTER, "Guesses of tokens to come that steps computed."),
    _vllm("spec_decode_num_draft_tokens", COUNTER, "Tokens of these guesses."),
    _vllm("spec_decode_num_accepted_tokens", COUNTER, "Those of them that turned out right."),
    _vllm("prompt_tokens", COUNTER, "Tokens of prompts, cached ones included."),
    _vllm("generation_tokens", COUNTER, "Tokens that were generated."),
    Metric(
        "request_success",
        COUNTER,
        "Requests that were answered to their end.",
        ("model_name", "finished_reason"),
        in_vllm=True,
    ),
    _vllm("request_prompt_tokens", HISTOGRAM, "Prompt tokens of a request.", _TOKENS),
    _vllm("request_generation_tokens", HISTOGRAM, "Generated tokens of a request.", _TOKENS),
    _vllm("iteration_tokens_total", HISTOGRAM, "Tokens of a step.", _TOKENS),
    _vllm(
        "request_max_num_generation_tokens",
        HISTOGRAM,
        "Tokens of the longest completion of a request.",
        _TOKENS,
    ),
    _vllm("request_params_n", HISTOGRAM, "Completions that a request asks for.", _SEQUENCES),
    _vllm("request_params_max_tokens", HISTOGRAM, "Tokens that a request asks for.", _TOKENS),
    _vllm(
        "time_to_first_token_seconds",
        HISTOGRAM,
        "From a request's arrival to its first token.",
        _FIRST_TOKEN,
    ),
    _vllm(
        "inter_token_latency_seconds",
        HISTOGRAM,
        "From a token of a request to its next.",
        _BETWEEN_TOKENS,
    ),
    _vllm(
        "request_time_per_output_token_seconds",
        HISTOGRAM,
        "Of a request, the mean time of a token after the first.",
        _BETWEEN_TOKENS,
    ),
    _vllm(
        "e2e_request_latency_seconds", HISTOGRAM, "From a request's arrival to its end.", _REQUEST
    ),
    _vllm("request_queue_time_seconds", HISTOGRAM, "Time that a request waited.", _REQUEST),
    _vllm(
        "request_inference_time_seconds",
        HISTOGRAM,
        "From the first step of a request to its last.",
        _REQUEST,
    ),
    _vllm(
        "request_prefill_time_seconds",
        HISTOGRAM,
        "From the first step of a request to its first token.",
        _REQUEST,
    ),
    _vllm(
        "request_decode_time_seconds",
        HISTOGRAM,
        "From the first token of a request to its last.",
        _REQUEST,
    ),
    Metric(
        "cache_config_info",
        GAUGE,
        "The KV cache, as labels.",
        ("model_name", "num_gpu_blocks", "block_size"),
        in_vllm=True,
    ),
    Metric("sessions", GAUGE, "Sessions that are open."),
    Metric("sessions_given_up", COUNTER, "Times that a session gave up what it held to others."),
    Metric("prompt_cache_hits", COUNTER, "Prefixes that were read from the disk."),
    Metric("prompt_cache_bytes", GAUGE, "Bytes of the prefixes on the disk."),
    Metric("model_load_seconds", GAUGE, "What the last load of a model took."),
    Metric(
        "compile_seconds",
        GAUGE,
        "What it last took to find or compile the artifact of a model that is not given as one.",
    ),
    Metric(
        "artifact_verify_failures",
        COUNTER,
        "Loads that failed since the artifact was damaged or did not reproduce a golden prompt.",
    ),
    Metric("engine_restarts", COUNTER, "Engines of a model that ended and were started again."),
    Metric(
        "requests_rejected",
        COUNTER,
        "Requests that were refused, by the code of the error. model_name is empty where a request "
        "did not get as far as a model.",
        ("model_name", "reason"),
    ),
    Metric(
        "requests_of_task",
        COUNTER,
        "Requests that got seats, by what the model does for them: generate, embed or classify.",
        ("model_name", "task"),
    ),
    Metric("requests_cancelled", COUNTER, "Requests whose client left before their end."),
    Metric(
        "performance_regression",
        GAUGE,
        "1 while a model has been slower than its own baseline for three windows in a row.",
    ),
    Metric("http_responses", COUNTER, "Answers, by their status.", ("status",)),
    Metric("http_requests_in_flight", GAUGE, "Requests that are being answered.", ()),
    Metric("event_loop_lag_seconds", HISTOGRAM, "How late the event loop runs.", (), _LAG),
    Metric("log_records_dropped", COUNTER, "Log records that could not be written.", ()),
    Metric("build_info", GAUGE, "The version, as a label.", ("version",)),
)

BY_NAME = {metric.name: metric for metric in METRICS}
