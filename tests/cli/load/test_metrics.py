"""The figures of a measurement, against their definitions."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingot.cli.load.metrics import num_good, peaks, result, spread, tpot
from ingot.cli.load.stream import RequestOutcome

seconds = st.floats(0, 100)


@st.composite
def outcomes(draw) -> RequestOutcome:
    itl = draw(st.lists(st.floats(0, 3), max_size=6))
    ttft = draw(st.floats(0.001, 5))
    return RequestOutcome(
        start=draw(seconds),
        prompt_tokens=draw(st.integers(1, 50)),
        output_tokens=len(itl) + 1,
        ttft=ttft,
        latency=ttft + sum(itl),
        itl=itl,
        error=draw(st.sampled_from(["", "", "", "HTTP 429: full"])),
    )


many = st.lists(outcomes(), min_size=1, max_size=12)


@given(many, st.floats(0.1, 50))
def test_counts_and_rates(found, duration):
    done = [each for each in found if not each.error]
    got = result(found, duration, goodput={}, percentiles=[50])
    inputs, outputs = (sum(getattr(o, f"{n}_tokens") for o in done) for n in ("prompt", "output"))
    assert (got["completed"], got["failed"]) == (len(done), len(found) - len(done))
    assert (got["total_input_tokens"], got["total_output_tokens"]) == (inputs, outputs)
    assert got["request_throughput"] == len(done) / duration
    assert got["output_throughput"] == outputs / duration
    assert got["total_token_throughput"] == (inputs + outputs) / duration
    assert got["request_goodput"] is None
    assert sum(got["errors"].values()) == got["failed"]


# No two that have one name, of six digits.
percents = st.floats(0, 100).map(lambda percent: round(percent, 3))


@given(st.lists(seconds, min_size=1, max_size=30), st.lists(percents, max_size=4))
def test_the_spread_of_a_metric(values, percentiles):
    got = spread("itl", values, percentiles)
    ms = [value * 1000 for value in values]
    assert got["mean_itl_ms"] == pytest.approx(statistics.fmean(ms))
    assert got["median_itl_ms"] == pytest.approx(statistics.median(ms))
    assert got["std_itl_ms"] == pytest.approx(statistics.pstdev(ms), rel=1e-6, abs=1e-4)
    ordered = sorted(ms)
    for point, value in got["percentiles_itl_ms"]:
        place = (len(ordered) - 1) * point / 100
        low, high = ordered[int(place)], ordered[min(int(place) + 1, len(ordered) - 1)]
        assert value == pytest.approx(low + (high - low) * (place - int(place)), abs=1e-6)
        assert got[f"p{point:g}_itl_ms"] == value


@given(many)
def test_latencies_are_those_of_requests_that_were_answered(found):
    done = [each for each in found if not each.error]
    got = result(found, 1.0, goodput={}, percentiles=[99])
    expected = {
        "ttft": [o.ttft for o in done],
        "tpot": [(o.latency - o.ttft) / (o.output_tokens - 1) for o in done if o.itl],
        "itl": [pause for o in done for pause in o.itl],
        "e2el": [o.latency for o in done],
    }
    for name, values in expected.items():
        assert got[f"mean_{name}_ms"] == pytest.approx(np.mean(values or [0]) * 1000)
        assert got[f"p99_{name}_ms"] == pytest.approx(np.percentile(values or [0], 99) * 1000)


def test_goodput_counts_requests_within_all_limits():
    fast = RequestOutcome(ttft=0.1, latency=0.3, output_tokens=3)
    slow_start = RequestOutcome(ttft=0.3, latency=0.5, output_tokens=3)
    slow_tokens = RequestOutcome(ttft=0.1, latency=1.1, output_tokens=3)
    one_token = RequestOutcome(ttft=0.1, latency=0.1, output_tokens=1)
    all_four = [fast, slow_start, slow_tokens, one_token]
    assert num_good(all_four, {}) == 4
    assert num_good(all_four, {"ttft": 200}) == 3
    assert num_good(all_four, {"ttft": 200, "tpot": 100.0001}) == 2
    assert num_good(all_four, {"e2el": 1000}) == 3
    assert result(all_four, 2.0, goodput={"ttft": 200}, percentiles=[])["request_goodput"] == 1.5
    assert tpot(slow_tokens) == pytest.approx(0.5) and tpot(one_token) == 0.0


@given(many)
def test_peaks_against_counting_one_by_one(found):
    got = peaks(found)
    inside = [
        sum(o.start <= at.start < o.start + max(o.latency, 1e-9) for o in found) for at in found
    ]
    assert got["max_concurrent_requests"] == max(inside)
    first = min(o.start for o in found)
    buckets: dict[int, int] = {}
    for o in found:
        moment = o.start + o.ttft
        for pause in [0.0, *np.cumsum(o.itl)]:
            second = int(moment + pause - first)
            buckets[second] = buckets.get(second, 0) + 1
    assert got["max_output_tokens_per_s"] == max(buckets.values())


def test_nothing_answered_is_zero_everywhere():
    got = result([RequestOutcome(error="no")], 1.0, goodput={"ttft": 1}, percentiles=[99])
    assert got["completed"] == got["request_goodput"] == got["mean_ttft_ms"] == 0
    assert got["max_concurrent_requests"] == 0 and got["errors"] == {"no": 1}
