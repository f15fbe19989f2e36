"""What a compile says of an artifact whose code is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingot.cli.main import main
from ingot.compare.bisect_sides import blame
from tests.compare.planted import faulty_kernels
from tests.support.made_once import made_once
from tests.support.tiny_models import save_random

# Norms that skip the last columns.
STORE = "store(out + c, load(x + c, part) * scale * w, part);\n"
FAULT = ("norm.h", STORE, f"if (c + lanes < Columns) {STORE}")

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def model() -> Path:
    place = made_once("bisected", lambda p: save_random("mistral", p / "model", tokenizer=True))
    return place / "model"


def test_the_code_gate_names_the_kernel_and_leaves_nothing(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a.ingot"
    words = ["compile", str(model), "-o", str(out), "--target", "cpu:portable"]
    with faulty_kernels(tmp_path / "kernels", *FAULT):
        assert main([*words, "--max-model-len", "64"]) == 4
    said = capsys.readouterr().err
    assert "the code gate: the golden outputs are not reproduced on this host" in said
    assert "does not leave what its instructions make of its inputs" in said
    assert "input_layernorm" in said and "fault of ingot" in said
    assert "Tried, without success: --dtype float32" in said
    assert not out.exists() and [p.name for p in tmp_path.iterdir()] == ["kernels"]


def test_where_nothing_can_be_opened_nothing_is_blamed(model: Path, tmp_path: Path) -> None:
    assert blame(tmp_path, model) == ""
