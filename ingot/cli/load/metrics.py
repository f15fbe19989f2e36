"""Metrics over all requests, under the names of vLLM's benchmark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ingot.cli.load.stream import RequestOutcome

METRICS = {
    "ttft": "time to first token",
    "tpot": "time per output token after the first",
    "itl": "time between two tokens",
    "e2el": "whole request",
}


def result(
    outcomes: Sequence[RequestOutcome],
    duration: float,
    *,
    goodput: Mapping[str, float],
    percentiles: Sequence[float],
) -> dict[str, Any]:
    """Counts, rates a second and latencies. These and the limits of `goodput` are milliseconds."""
    done = [each for each in outcomes if not each.error]
    inputs, outputs = (sum(getattr(o, f"{n}_tokens") for o in done) for n in ("prompt", "output"))
    found: dict[str, Any] = {
        "duration": duration,
        "completed": len(done),
        "failed": len(outcomes) - len(done),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": len(done) / duration,
        "request_goodput": num_good(done, goodput) / duration if goodput else None,
        "output_throughput": outputs / duration,
        "total_token_throughput": (inputs + outputs) / duration,
        **peaks(done),
        "errors": dict(Counter(each.error for each in outcomes if each.error).most_common()),
    }
    for name, values in latencies(done).items():
        found |= spread(name, values, percentiles)
    return found


def latencies(done: Sequence[RequestOutcome]) -> dict[str, list[float]]:
    """The values of each metric, in seconds. A request of one token has no time per token."""
    return {
        "ttft": [each.ttft for each in done],
        "tpot": [tpot(each) for each in done if each.output_tokens > 1],
        "itl": [pause for each in done for pause in each.itl],
        "e2el": [each.latency for each in done],
    }


def tpot(outcome: RequestOutcome) -> float:
    """Seconds of an output token after the first, on average; 0.0 for a single one."""
    rest = outcome.output_tokens - 1
    return (outcome.latency - outcome.ttft) / rest if rest > 0 else 0.0


def num_good(done: Sequence[RequestOutcome], limits: Mapping[str, float]) -> int:
    """Requests that kept to every limit."""
    measured: dict[str, Callable[[RequestOutcome], float]] = {
        "ttft": lambda each: each.ttft,
        "tpot": tpot,
        "e2el": lambda each: each.latency,
    }
    return sum(all(measured[n](each) * 1000 <= m for n, m in limits.items()) for each in done)


def spread(name: str, seconds: Sequence[float], percentiles: Sequence[float]) -> dict[str, Any]:
    """Mean, median, deviation and percentiles of a metric, in milliseconds; 0 for no value."""
    values = np.asarray(seconds or [0.0]) * 1000
    points = [(float(p), float(np.percentile(values, p))) for p in percentiles]
    return {
        f"mean_{name}_ms": float(np.mean(values)),
        f"median_{name}_ms": float(np.median(values)),
        f"std_{name}_ms": float(np.std(values)),
        f"percentiles_{name}_ms": points,
        **{f"p{p:g}_{name}_ms": value for p, value in points},
    }


def peaks(done: Sequence[RequestOutcome]) -> dict[str, Any]:
    """Most requests at one moment, and most tokens in one second counted from the first request."""
    if not done:
        return {"max_output_tokens_per_s": 0.0, "max_concurrent_requests": 0}
    edges = sorted(
        edge for o in done for edge in ((o.start, 1), (o.start + max(o.latency, 1e-9), -1))
    )
    first = edges[0][0]
    moments = [o.start + o.ttft + t for o in done for t in (0.0, *np.cumsum(o.itl))]
    seconds = Counter(int(moment - first) for moment in moments)
    return {
        "max_output_tokens_per_s": float(max(seconds.values())),
        "max_concurrent_requests": int(np.cumsum([step for _, step in edges]).max()),
    }
