"""`Board`: the values of all metrics as plain numbers, and their exposition for Prometheus.

The event loop alone changes them, several for every step of an engine, so a change costs an
addition: no lock, no search for labels. Objects of prometheus_client are made when somebody asks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate
from math import inf

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.core import (
    Metric as Family,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from ingot.serve.metrics.catalogue import BY_NAME, COUNTER, HISTOGRAM, METRICS, Metric

_PREFIX, _VLLM = "ingot_", "vllm:"


class Number:
    """The value of a counter or a gauge."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, amount: float = 1.0) -> None:
        self.value += amount


class Histogram:
    """Histogram: counts of values between two bounds."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Counts a value, as often as it occurred."""
        self._counts[bisect_left(self._bounds, value)] += times
        self.total += value * times

    def add_counts(self, counts: Iterable[int], total: float) -> None:
        """Adds values that were counted elsewhere between the same bounds, and their sum."""
        self._counts = [a + b for a, b in zip(self._counts, counts, strict=True)]
        self.total += total

    def buckets(self) -> list[tuple[str, float]]:
        """The bounds as Prometheus writes them, with how many values are not above."""
        names = [str(floatToGoString(b)) for b in (*self._bounds, inf)]  # type: ignore[no-untyped-call]
        return list(zip(names, accumulate(self._counts), strict=True))

    @property
    def count(self) -> int:
        """Number of values."""
        return sum(self._counts)


class Board(Collector):
    """All metrics; with `compat`, those that vLLM has under its names as well."""

    def __init__(self, compat: bool = False) -> None:
        self._compat = compat
        self._values: dict[str, dict[tuple[str, ...], Number | Histogram]] = {
            metric.name: {} for metric in METRICS
        }
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def number(self, name: str, *labels: str) -> Number:
        """A counter or gauge, to be kept by whoever changes it often."""
        values = self._values[name]
        value = values.get(labels)
        if value is None:
            assert BY_NAME[name].kind != HISTOGRAM and len(BY_NAME[name].labels) == len(labels)
            value = values[labels] = Number()
        assert isinstance(value, Number)
        return value

    def histogram(self, name: str, *labels: str) -> Histogram:
        """A histogram, to be kept by whoever changes it often."""
        values = self._values[name]
        value = values.get(labels)
        if value is None:
            assert BY_NAME[name].kind == HISTOGRAM and len(BY_NAME[name].labels) == len(labels)
            value = values[labels] = Histogram(BY_NAME[name].bounds)
        assert isinstance(value, Histogram)
        return value

    def forget(self, name: str, *labels: str) -> None:
        """Takes a series out."""
        self._values[name].pop(labels, None)

    def exposition(self) -> tuple[bytes, str]:
        """The text that Prometheus reads, and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def collect(self) -> Iterator[Family]:
        """The families that prometheus_client writes out."""
        for metric in METRICS:
            values = self._values[metric.name]
            yield _family(metric, _PREFIX + metric.name, metric.labels, values.items())
            if self._compat and metric.in_vllm:
                with_engine = [((*labels, "0"), value) for labels, value in values.items()]
                yield _family(metric, _VLLM + metric.name, (*metric.labels, "engine"), with_engine)


def _family(
    metric: Metric,
    name: str,
    labels: tuple[str, ...],
    values: Iterable[tuple[tuple[str, ...], Number | Histogram]],
) -> Family:
    if metric.kind == HISTOGRAM:
        histograms = HistogramMetricFamily(name, metric.help, labels=labels)
        for of, value in values:
            if isinstance(value, Histogram):
                histograms.add_metric(of, value.buckets(), value.total)
        return histograms
    numbers = (CounterMetricFamily if metric.kind == COUNTER else GaugeMetricFamily)(
        name, metric.help, labels=labels
    )
    for of, value in values:
        if isinstance(value, Number):
            numbers.add_metric(of, value.value)
    return numbers
