"""Advice where a model does not fit: options that do, and what they cost a small model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ingot.cli.advice import MEASURED, advice, usual_kl
from ingot.compiler.explain import explain
from ingot.compiler.needs import Use
from tests.conftest import SHAKESPEARE

CURVE = Path(__file__).parents[2] / "docs" / "quantization_curve.json"


def given(memory_bytes: int | None) -> str:
    return advice(explain(Path(SHAKESPEARE), use=Use(context=64, memory_bytes=memory_bytes)))


def test_what_fits_needs_no_advice() -> None:
    assert given(10**9) == ""
    assert given(None) == ""


def test_what_never_fits_gets_none() -> None:
    assert given(10_000) == ""


def test_what_fits_in_fewer_bits_is_told_how() -> None:
    found = explain(Path(SHAKESPEARE), use=Use(context=64, memory_bytes=1))
    plain = next(way for way in found.ways if way.default)
    beside = plain.caches[0].total_bytes - plain.weight_bytes
    text = given(beside + 4_000_000)
    assert text.startswith("--quantize auto --max-bytes 4MB fits beside the cache, at 6.1 bits")
    assert "about 0.02 nats" in text


@pytest.mark.parametrize(("bits", "kl"), MEASURED)
def test_costs_are_those_that_were_measured(bits: float, kl: float) -> None:
    assert usual_kl(bits) == pytest.approx(kl)


def test_measured_points_are_those_of_the_page() -> None:
    points = json.loads(CURVE.read_text())["SmolLM2-135M-Instruct"]["points"]
    chosen = {p["name"].removeprefix("auto-"): p["kl"] for p in points if "auto-" in p["name"]}
    assert {f"{bits:g}": kl for bits, kl in MEASURED} == pytest.approx(chosen, rel=5e-3)


def test_fewer_bits_cost_more() -> None:
    costs = [usual_kl(4.0 + n / 10) for n in range(50)]
    assert costs == sorted(costs, reverse=True)
