"""Metrics over all requests, under the names of vLLM's benchmark, and their text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ingot.cli.load.stream import RequestOutcome
from ingot.cli.numbers import format_seconds
from ingot.cli.output import facts, table

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


def text(found: Mapping[str, Any], shown: Sequence[str]) -> str:
    """Counts, rates, and a table of the metrics that are asked for."""
    parts = [f"{found['model_id']} at {found['base_url']}", facts(_facts(found))]
    if found["completed"]:
        parts.append(_table(found, shown))
    if found["errors"]:
        parts.append("failed:\n" + facts((f"{n} x", what) for what, n in found["errors"].items()))
    return "\n\n".join(parts)


def _facts(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    good, failed = found["request_goodput"], found["failed"]
    sent = f"{found['completed']} completed" + (f", {failed} failed" if failed else "")
    rows = [
        ("requests", f"{sent}, in {format_seconds(found['duration'])}"),
        ("at once", f"{found['max_concurrent_requests']} at most"),
        ("tokens", f"{found['total_input_tokens']} in, {found['total_output_tokens']} out"),
        ("throughput", f"{found['request_throughput']:.2f} requests/s"),
        ("", f"{found['output_throughput']:.1f} tokens/s out"),
        ("", f"{found['total_token_throughput']:.1f} tokens/s in and out"),
        ("best second", f"{found['max_output_tokens_per_s']:.0f} tokens out"),
    ]
    if good is not None:
        limits = ", ".join(f"{name} {limit:g} ms" for name, limit in found["goodput"].items())
        rows.append(("goodput", f"{good:.2f} requests/s within {limits}"))
    return rows


def _table(found: Mapping[str, Any], shown: Sequence[str]) -> str:
    points = [f"p{p:g}" for p, _ in found[f"percentiles_{shown[0]}_ms"]] if shown else []
    columns = ["mean", "median", "std", *points]
    rows = [
        [
            METRICS[name],
            name.upper(),
            *(f"{found[f'{column}_{name}_ms']:.2f}" for column in columns),
        ]
        for name in shown
    ]
    return table(rows, ("milliseconds", "", *columns)) if rows else ""
