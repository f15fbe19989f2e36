"""The dashboard and the page on operating name the metrics and limits that there are."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path

from prometheus_client import CollectorRegistry, ProcessCollector

from ingot.cli.serve_options import EDGE_OPTIONS
from ingot.serve.edge.settings import ClientLimits
from ingot.serve.metrics.catalogue import COUNTER, HISTOGRAM, METRICS

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "operating.md").read_text()
DASHBOARD = json.loads((ROOT / "deploy" / "grafana.json").read_text())


def sample_names() -> set[str]:
    """The names of all series that are exposed."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    names = {sample.name for family in registry.collect() for sample in family.samples}
    for metric in METRICS:
        ends = ("_bucket", "_sum", "_count") if metric.kind == HISTOGRAM else ("",)
        ends = ("_total",) if metric.kind == COUNTER else ends
        names |= {f"ingot_{metric.name}{end}" for end in ends}
    return names


def strays(expressions: list[str]) -> set[str]:
    """What expressions ask for that is no series."""
    words = set(re.findall(r"\b(?:ingot|process)_\w+", " ".join(expressions)))
    return words - sample_names()


def expressions() -> list[str]:
    queries = [variable["query"] for variable in DASHBOARD["templating"]["list"]]
    return queries + [t["expr"] for panel in DASHBOARD["panels"] for t in panel["targets"]]


def test_the_dashboard_asks_for_series_that_are_exposed():
    assert len(DASHBOARD["panels"]) > 15 and strays(expressions()) == set()
    assert strays(["rate(ingot_no_such_total[5m])"]) == {"ingot_no_such_total"}


def test_the_dashboard_groups_by_labels_that_there_are():
    labels = {label for metric in METRICS for label in metric.labels} | {"le"}
    found = set()
    for expression in expressions():
        found |= set(re.findall(r"\w+", " ".join(re.findall(r" by \(([^)]*)\)", expression))))
        found |= set(re.findall(r"(\w+)=~", expression))
    assert found and found <= labels


def test_panels_of_the_dashboard_have_ids_and_places_of_their_own():
    panels = DASHBOARD["panels"]
    for key in (lambda p: p["id"], lambda p: p["title"], lambda p: str(p["gridPos"])):
        assert len({key(panel) for panel in panels}) == len(panels)


def test_the_page_lists_every_metric():
    rows = re.findall(r"^\| `ingot_(\w+)` \| (\w+) \|", PAGE, re.M)
    ends = {COUNTER: "_total"}
    assert rows == [(m.name + ends.get(m.kind, ""), m.kind) for m in METRICS]


def test_the_page_lists_every_limit_with_its_default():
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \| (?:`--([\w-]+)`)? *\|", PAGE, re.M)
    defaults = {
        name: str(value).removesuffix(".0") for name, value in asdict(ClientLimits()).items()
    }
    defaults |= {"max_queue_tokens": "4 × KV cache"}
    defaults |= {"max_key_requests": "none", "max_key_tokens": "none"}
    assert {name: default for name, default, _ in rows} == defaults
    options = {name for group in EDGE_OPTIONS for each in group.arguments for name in each.names}
    assert {f"--{option}" for *_, option in rows if option} <= options
