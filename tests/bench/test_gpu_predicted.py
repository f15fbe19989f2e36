"""The predicted shares of bandwidth in docs/gpu.md are those of the kernels."""

from __future__ import annotations

import json

import pytest

from bench.gpu.page import BEGIN, END, NOTHING
from bench.gpu.page import PAGE as MEASURED
from bench.gpu.predicted import (
    CARDS,
    FIGURES,
    MODELS,
    PAGE,
    READS,
    STORED,
    predicted,
    section,
    share,
    with_predictions,
)
from ingot.artifact.architectures import ARCHITECTURES

RECORDED = json.loads(FIGURES.read_text())


def test_the_page_says_what_was_recorded() -> None:
    assert with_predictions(PAGE.read_text(), RECORDED) == PAGE.read_text(), "run `make docs`"
    assert {*RECORDED} == {*MODELS} and all({*each} == {*STORED} for each in RECORDED.values())


def test_another_figure_is_another_page() -> None:
    """The control, and every card and format has a column."""
    other = json.loads(FIGURES.read_text())
    other["qwen3-0.6b"]["int4"]["reads"]["head"]["under_way"] //= 8
    assert section(other) != section(RECORDED)
    for card in CARDS:
        for name in STORED.values():
            assert f"| {card} {name} " in section(RECORDED)
    with pytest.raises(ValueError, match="no place"):
        with_predictions("# GPUs", RECORDED)


def test_a_share_is_of_the_card() -> None:
    """Much that is under way gives a slower card all it has, and a small matrix waits once."""
    product = RECORDED["qwen3-0.6b"]["none"]["reads"]["down"]
    assert (share(product, CARDS["H100"]), share(product, CARDS["H200"])) == ("70 %", "62 %")
    small = {"nbytes": 4.8e12 * 800e-9, "under_way": 1 << 20}
    assert share(small, CARDS["H200"]) == "50 %"
    assert CARDS["H200"] == ARCHITECTURES["sm_90"].bytes_per_second


def test_the_page_says_that_nothing_was_measured_as_long_as_nothing_was() -> None:
    page = MEASURED.read_text()
    measured = page[page.index(BEGIN) + len(BEGIN) : page.index(END)].strip()
    assert measured == NOTHING or measured.startswith("Measured by `bench/gpu_check.sh` on ")


@pytest.mark.slow
@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("shape", MODELS)
def test_the_kernels_are_as_recorded(tmp_path, shape: str, stored: str) -> None:
    """With the versions that are recorded beside them."""
    assert predicted(tmp_path, shape, stored) == RECORDED[shape][stored]
    assert {*RECORDED[shape][stored]["reads"]} == {*READS}
