"""What a run found, as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bench.gpu.results import FAILED, NOT_RUN, OK, Outcome

MOST_SHOWN = 110  # characters of the figures of a part


def line(outcome: Outcome) -> str:
    """A part in a line, and what went wrong below it."""
    text = f"{outcome.status:<8}{outcome.seconds:7.1f} s  {outcome.name}"
    if outcome.status == FAILED:
        return f"{text}\n" + "\n".join(f"    {each}" for each in outcome.error.splitlines())
    return f"{text}: {outcome.error}" if outcome.error else text


def table(outcomes: Iterable[Outcome]) -> str:
    """How many parts ended how, and the figures of each."""
    outcomes = list(outcomes)
    counts = (f"{sum(o.status == s for o in outcomes)} {s}" for s in (OK, FAILED, NOT_RUN))
    rows = [", ".join(counts), ""]
    for outcome in outcomes:
        for name, value in outcome.figures.items():
            rows.append(f"{outcome.name:<36}{name:<24}{shown(value)}"[: 60 + MOST_SHOWN])
    return "\n".join(rows)


def shown(value: Any) -> str:
    """A figure in a line."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {shown(each)}" for name, each in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(shown, value))
    return str(value)
