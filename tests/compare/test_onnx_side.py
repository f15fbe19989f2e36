"""ONNX files as sides: both known forms run, all others are refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ingot.compare.sides import open_side
from ingot.errors import IngotError, ModelDirError, UsageError
from tests.compare.onnx_files import HALF, write_table

TABLE = np.random.default_rng(0).standard_normal((8, 8), np.float32)
WITH_CACHE = ("input_ids", "attention_mask", "past_key_values.0.key", "past_key_values.0.value")
TOKENS = [3, 1, 4, 1, 5]


def expected(inputs: tuple[str, ...]) -> np.ndarray:
    logits = TABLE[TOKENS]
    if "position_ids" in inputs:
        logits = logits + np.arange(5, dtype=np.float32)[:, None]
    return logits + 5 if "attention_mask" in inputs else logits


@pytest.mark.parametrize(
    "inputs",
    [("input_ids",), ("input_ids", "position_ids"), WITH_CACHE, (*WITH_CACHE, "position_ids")],
    ids=["tokens", "positions", "cache", "all"],
)
def test_known_forms_give_the_logits_of_the_file(inputs, tmp_path):
    side = open_side(str(write_table(tmp_path / "model.onnx", TABLE, inputs=inputs)))
    got = side.logits(TOKENS)
    assert got.dtype == np.float32 and got == pytest.approx(expected(inputs), rel=1e-6)
    assert (side.vocab_size, side.max_model_len, side.tokenizer) == (8, None, None)
    greedy = side.greedy([3], 1)
    assert greedy == [int(TABLE[3].argmax())]
    side.close()


def test_float16_is_widened(tmp_path):
    path = write_table(tmp_path / "model.onnx", TABLE, inputs=WITH_CACHE, dtype=HALF)
    got = open_side(str(path)).logits(TOKENS)
    assert got.dtype == np.float32
    assert got == pytest.approx(TABLE[TOKENS].astype(np.float16).astype(np.float32) + 5, rel=2e-3)


def test_limits_and_ends_are_read_beside_the_file(tmp_path):
    path = write_table(tmp_path / "model.onnx", TABLE)
    config = {"model": {"context_length": 12, "eos_token_id": [2, 5]}}
    (tmp_path / "genai_config.json").write_text(json.dumps(config))
    side = open_side(str(path))
    assert (side.max_model_len, side.eos_token_ids) == (12, (2, 5))


def damaged(folder: Path) -> Path:
    path = write_table(folder / "model.onnx", TABLE)
    path.write_bytes(path.read_bytes()[:100])
    return path


# What stands there, the error, and what it says.
REFUSED = {
    "no file": (lambda folder: folder / "no.onnx", UsageError, "does not exist"),
    "a folder": (lambda folder: folder.rename(folder.with_suffix(".onnx")), UsageError, "is a dir"),
    "damaged": (damaged, ModelDirError, "cannot load"),
    "an opset to come": (
        lambda folder: write_table(folder / "model.onnx", TABLE, opset=99),
        ModelDirError,
        "cannot load .*: ONNX Runtime only .* Opset 99 is .* till opset",
    ),
    "an unknown input": (
        lambda folder: write_table(folder / "m.onnx", TABLE, inputs=("input_ids", "past_x")),
        UsageError,
        "unknown inputs: past_x",
    ),
    "no tokens": (
        lambda folder: write_table(folder / "m.onnx", TABLE, inputs=("position_ids",)),
        ModelDirError,
        "cannot load",
    ),
    "one row of logits": (
        lambda folder: write_table(folder / "m.onnx", TABLE, last_alone=True),
        UsageError,
        r"of the shape \[1, 1, 8\] for 2 tokens",
    ),
    "a cache of two dimensions": (
        lambda folder: write_table(folder / "m.onnx", TABLE, inputs=WITH_CACHE, past_shape=(1, 2)),
        UsageError,
        "unknown inputs: past_key_values",
    ),
    "heads of any number": (
        lambda folder: write_table(
            folder / "m.onnx", TABLE, inputs=WITH_CACHE, past_shape=(1, "heads", "past", 4)
        ),
        UsageError,
        "unknown inputs: past_key_values",
    ),
    "no logits": (
        lambda folder: write_table(folder / "model.onnx", TABLE, output="scores"),
        UsageError,
        "no output logits, sentence_embedding or token_embeddings: scores",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_language_model_is_refused(name, tmp_path):
    make, error, said = REFUSED[name]
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(IngotError, match=said) as caught:
        open_side(str(make(folder)))
    assert type(caught.value) is error and caught.value.exit_code == 2 and caught.value.hint


def test_a_missing_package_is_named_with_its_extra(tmp_path):
    path = write_table(tmp_path / "model.onnx", TABLE)
    code = (
        'import sys; sys.modules["onnxruntime"] = None\n'
        "from ingot.cli.main import main; sys.exit(main())"
    )
    command = [sys.executable, "-c", code, "compare", str(path), str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "error: onnxruntime is not installed\n" in done.stderr
    assert "pip install 'ingot-lm[onnx]'" in done.stderr
