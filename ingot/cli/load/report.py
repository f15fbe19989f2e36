"""Text of a server's measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ingot.cli.load.metrics import METRICS
from ingot.cli.numbers import format_seconds
from ingot.cli.output import facts, table


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
