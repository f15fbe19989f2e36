"""Times of a request, from those of its completions; by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ingot.runtime.request import metrics_of


def sequence(arrived: float, tokens: tuple[float, ...], started: float | None = None) -> Any:
    """A finished completion whose tokens came at these moments, in seconds."""
    times = SimpleNamespace(
        arrived=arrived,
        started=started,
        first_token=tokens[0] if tokens else None,
        last_token=tokens[-1] if tokens else None,
    )
    return SimpleNamespace(
        times=times,
        num_prompt=7,
        num_cached=2,
        num_generated=len(tokens),
        num_preemptions=1,
        finished=True,
    )


def test_the_time_of_a_token_leaves_out_the_first_of_every_completion() -> None:
    completions = [
        sequence(10.0, (12.0, 13.0, 14.0, 15.0), started=11.0),
        sequence(10.0, (12.5, 14.5), started=11.5),
        sequence(10.0, (13.0,), started=11.5),
    ]
    metrics = metrics_of(completions)
    assert metrics.tpot_seconds == pytest.approx((3.0 + 2.0) / (3 + 1))
    assert metrics.queue_seconds == pytest.approx(1.0)
    assert metrics.ttft_seconds == pytest.approx(2.0)
    assert metrics.total_seconds == pytest.approx(5.0)
    assert (metrics.num_prompt_tokens, metrics.num_cached_tokens) == (7, 2)
    assert (metrics.num_generated_tokens, metrics.num_preemptions) == (7, 3)


def test_one_token_has_no_time_between_tokens() -> None:
    assert metrics_of([sequence(0.0, (1.0,), started=0.5)]).tpot_seconds is None


def test_a_first_token_without_a_step_starts_the_request() -> None:
    metrics = metrics_of([sequence(1.0, (1.25, 2.0))])
    assert metrics.queue_seconds == metrics.ttft_seconds == pytest.approx(0.25)
    assert metrics.tpot_seconds == pytest.approx(0.75)


def test_nothing_is_known_before_the_first_step() -> None:
    metrics = metrics_of([sequence(1.0, ())])
    assert metrics.queue_seconds is metrics.ttft_seconds is metrics.total_seconds is None
