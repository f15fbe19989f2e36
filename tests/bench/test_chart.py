"""The numbers of the chart; the drawing itself is looked at by people."""

from __future__ import annotations

from bench.chart import bars


def test_a_bar_is_its_share_of_the_limit():
    phase = {
        "name": "decode", "tokens": 4, "tokens_per_second": 20.0, "limit_seconds": 0.1,
        "share": 0.5, "bound": "memory",
    }  # fmt: skip
    (bar,) = bars({"phases": [phase]})
    assert bar["limit"] == 40.0
    assert bar["speed"] / bar["limit"] == bar["share"]
