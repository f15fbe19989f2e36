"""The bundled model against what `golden/shakespeare/` says of it.

A change that is meant is recorded by `make golden`; its diff is part of the review.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ingot
from golden.update import FOLDER, MODEL, outputs, structure
from tests.support.build_once import built_once

LOGPROB_TOLERANCE = 2e-3  # hosts differ in the order of float32 sums


@pytest.fixture(scope="module")
def float32_outputs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    artifact = tmp_path_factory.mktemp("golden") / "float32.ingot"
    with built_once():
        ingot.compile(MODEL, artifact, dtype="float32")
    return outputs(artifact)


@pytest.mark.parametrize("name", ["ledger.txt", "plan.txt"])
def test_structure_is_as_recorded(shakespeare_artifact: Path, name: str) -> None:
    assert structure(shakespeare_artifact)[name] == (FOLDER / name).read_text()


def test_tokens_and_log_probabilities_are_as_recorded(
    float32_outputs: list[dict[str, object]],
) -> None:
    recorded = json.loads((FOLDER / "outputs.json").read_text())
    for got, expected in zip(float32_outputs, recorded, strict=True):
        assert got["prompt"] == expected["prompt"]
        assert got["token_ids"] == expected["token_ids"]
        assert got["text"] == expected["text"]
        assert got["logprobs"] == pytest.approx(expected["logprobs"], abs=LOGPROB_TOLERANCE)


def test_the_recorded_text_reads_like_the_play(float32_outputs: list[dict[str, object]]) -> None:
    texts = [str(result["text"]) for result in float32_outputs]
    assert all(len(text) > 40 for text in texts)
    assert any(":\n" in text for text in texts)  # somebody else speaks
