"""Goldens of models of whole texts: recorded in a file, and held against every artifact."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ingot
from ingot.artifact.golden_rows import GoldenRows, decode_rows, encode_rows
from ingot.artifact.reader import Artifact
from ingot.cli.main import main
from ingot.errors import GoldenError
from ingot.runtime.goldens import check_fit, golden_file
from ingot.runtime.verify import replay
from tests.runtime.fake_model import write_fake
from tests.support.text_models import KINDS, TEXTS, colbert, rows

PROMPTS = [*({"prompt": text} for text in TEXTS), {"prompt": "To be, or not to be"}]


@pytest.fixture(scope="module")
def recorded(embedder_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("goldens")
    (folder / "p.jsonl").write_text("\n".join(map(json.dumps, PROMPTS)))
    argv = ["golden", "record", str(embedder_artifact.parent / "model"), "-o", str(folder / "g")]
    argv += ["--prompts", str(folder / "p.jsonl"), "--formats", "float32,int8"]
    assert main(argv) == 0
    return folder / "g"


def read(path: Path) -> GoldenRows:
    return decode_rows(path.read_bytes(), str(path))


def test_what_is_recorded_is_what_transformers_says(recorded: Path) -> None:
    golden, judge = read(recorded), KINDS["bert"].build("Model")
    assert [prompt.text for prompt in golden.prompts] == [None] * 3 + ["To be, or not to be"]
    assert [prompt.tokens for prompt in golden.prompts[:3]] == TEXTS
    for prompt in golden.prompts:
        wanted = rows(judge, prompt.tokens).mean(0)
        assert torch.allclose(torch.tensor(prompt.row), wanted, rtol=2e-5, atol=2e-5)
    assert 0 < golden.tolerances["float32"].noise < 1e-5 < golden.tolerances["int8-g32"].noise


def test_an_artifact_is_held_against_the_file(
    embedder_artifact: Path, recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(embedder_artifact), "--golden", str(recorded)]) == 0
    out = capsys.readouterr().out
    assert "4 texts, float32" in out and "cosine 1.0000000 or more" in out


Damage = Callable[[GoldenRows], None]


def other_row(golden: GoldenRows) -> None:
    golden.prompts[1].row[3] += 0.01


def other_tokens(golden: GoldenRows) -> None:
    golden.prompts[3].text = "to be, or not to be"


def test_other_rows_and_other_tokens_fail(
    embedder_artifact: Path, recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for damage, said in ((other_row, "largest error 0.01"), (other_tokens, "other tokens")):
        golden = read(recorded)
        damage(golden)
        (tmp_path / "g").write_bytes(encode_rows(golden))
        assert main(["verify", str(embedder_artifact), "--golden", str(tmp_path / "g")]) == 4
        assert said in capsys.readouterr().err


def fit(artifact: Path, golden: GoldenRows, folder: Path) -> None:
    (folder / "g").write_bytes(encode_rows(golden))
    check_fit(golden_file(folder / "g"), folder / "g", Artifact.open(artifact))


def test_files_that_do_not_fit_are_refused(
    embedder_artifact: Path, reranker_artifact: Path, recorded: Path, tmp_path: Path
) -> None:
    with pytest.raises(GoldenError, match="another model"):
        fit(reranker_artifact, read(recorded), tmp_path)
    with pytest.raises(GoldenError, match="another model"):
        fit(write_fake(tmp_path / "fake"), read(recorded), tmp_path)
    golden = read(recorded)
    del golden.tolerances["float32"]
    with pytest.raises(GoldenError, match="no tolerance for float32"):
        fit(embedder_artifact, golden, tmp_path)
    golden = read(recorded)
    golden.prompts[0].tokens *= 20
    with pytest.raises(GoldenError, match=r"prompt 0 of .* has 100 tokens, and .* takes 64"):
        fit(embedder_artifact, golden, tmp_path)


def test_vectors_of_tokens_are_recorded_and_held(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact = colbert()
    model = artifact.parent / "model"
    argv = ["golden", "record", str(model), "-o", str(tmp_path / "g"), "--formats", "float32"]
    assert main(argv) == 0
    assert read(tmp_path / "g").program == "tokens"
    assert main(["verify", str(artifact), "--golden", str(tmp_path / "g")]) == 0
    assert "tokens" in capsys.readouterr().out
    golden, other = read(tmp_path / "g"), read(recorded)
    other.model = golden.model
    other_row(golden)
    (tmp_path / "g").write_bytes(encode_rows(golden))
    assert main(["verify", str(artifact), "--golden", str(tmp_path / "g")]) == 4
    with pytest.raises(GoldenError, match=r"the program encode, and .* has tokens"):
        fit(artifact, other, tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": 1}, "of format 1, and this ingot reads format 2"),
        ({"program": "other"}, "no program 'other'"),
        ({"tolerances": {}}, "no number format"),
        ({"prompts": []}, "no row"),
    ],
)
def test_damaged_files_are_refused(
    recorded: Path, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    (tmp_path / "g").write_text(json.dumps(json.loads(recorded.read_bytes()) | change))
    with pytest.raises(GoldenError, match=said):
        golden_file(tmp_path / "g")


def test_formats_of_a_cache_are_refused(
    embedder_artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["golden", "record", str(embedder_artifact.parent / "model"), "-o", str(tmp_path / "g")]
    assert main([*argv, "--formats", "bfloat16+int8-cache"]) == 2
    assert "It keeps no cache" in capsys.readouterr().err


@pytest.mark.thorough
def test_one_file_serves_every_number_format(embedder_artifact: Path, tmp_path: Path) -> None:
    model = embedder_artifact.parent / "model"
    assert main(["golden", "record", str(model), "-o", str(tmp_path / "g")]) == 0
    golden = golden_file(tmp_path / "g")
    integers = {"int8-g32", "int4-g32-zeros"}
    assert {*golden.tolerances} == {"float32", "bfloat16", "float16", *integers}
    for name, options in (("a", {"dtype": "bfloat16"}), ("b", {"quantize": "int8"})):
        ingot.compile(model, tmp_path / name, **options)
        artifact = Artifact.open(tmp_path / name)
        check_fit(golden, tmp_path / "g", artifact)
        found = replay(artifact, golden)
        assert found.passed and 0.99 < found.programs["encode"].cosine < 1 - 1e-7
        assert np.isfinite(found.programs["encode"].largest)
