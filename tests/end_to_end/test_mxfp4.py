"""gpt-oss in its published layout, experts in mxfp4: the logits of `transformers`, which turns
the same blocks and scales into numbers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ingot
from ingot.compiler.explain import explain
from ingot.errors import CheckpointError
from tests.end_to_end.support import judged_logits, random_tokens, relative_error
from tests.support.checkpoints import Tensors, build, edit, plain_logits, refused
from tests.support.mxfp4_model import dequantized, save_mxfp4

LONGEST = 128
DOWN = "model.layers.1.mlp.experts.down_proj"


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_mxfp4(tmp_path_factory.mktemp("mxfp4") / "model")


def test_the_module_has_the_numbers_of_the_blocks(model_dir: Path, tmp_path: Path) -> None:
    tokens = random_tokens(60)
    expected = judged_logits(dequantized(model_dir), tokens)
    assert expected.std() > 0.1
    assert relative_error(plain_logits(model_dir, tokens), expected) <= 1e-5
    # The control: the two codes of every byte in the other order.
    other = Path(shutil.copytree(model_dir, tmp_path / "other"))
    edit(other, changed(f"{DOWN}_blocks", lambda t: t >> 4 | t << 4))
    assert relative_error(plain_logits(other, tokens), expected) > 0.03


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "stored", "limit"),
    [
        ({}, "int8-g32", 0.03),  # activations are rounded to int8
        ({"dequantize": True, "dtype": "float32"}, "none", 1e-4),
        ({"dequantize": True, "dtype": "bfloat16"}, "none", 0.03),
    ],
)
def test_logits_are_those_of_transformers(
    options: dict[str, Any], stored: str, limit: float, model_dir: Path, tmp_path: Path
) -> None:
    report = ingot.compile(model_dir, tmp_path / "a.ingot", max_model_len=LONGEST, **options)
    assert report.manifest.numerics.quantization.split(",")[0].startswith(stored)
    model = dequantized(model_dir)
    with ingot.LLM(report.artifact) as llm:
        for length in (1, 17, 100):
            tokens = random_tokens(length)
            got = llm.logits(tokens)
            assert relative_error(got, judged_logits(model, tokens)) <= limit
            assert np.array_equal(got, llm.logits(tokens, chunk_tokens=7))


def test_explain_tells_what_experts_become(model_dir: Path) -> None:
    told = explain(model_dir)
    assert told.supported
    assert any("mxfp4 g32, kept as int8-g32" in feature for feature in told.features)


def changed(name: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], Any]:
    return lambda tensors: tensors.update({name: make(tensors[name]).contiguous()})


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda t: t.pop(f"{DOWN}_scales"), f"{DOWN}_blocks without {DOWN}_scales"),
        (lambda t: t.pop(f"{DOWN}_blocks"), f"{DOWN}_scales without {DOWN}_blocks"),
        (changed(f"{DOWN}_scales", lambda t: t[..., :1]), "_scales [7, 64, 1] instead of"),
        (changed(f"{DOWN}_scales", torch.Tensor.short), f"{DOWN}_scales in I16 instead of U8"),
        (changed(f"{DOWN}_blocks", lambda t: t[..., :8]), f"{DOWN}_blocks [7, 64, 2, 8] instead"),
        # One expert less than the config says, blocks and scales alike.
        (
            lambda t: [
                changed(f"{DOWN}{end}", lambda x: x[:6])(t) for end in ("_blocks", "_scales")
            ],
            DOWN,
        ),
        (lambda t: t.update({DOWN: torch.zeros(7, 64, 64)}), f"{DOWN} as they are and quantized"),
    ],
)
def test_tensors_that_do_not_fit_together(
    damage: Callable[[Tensors], Any], named: str, model_dir: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(model_dir, tmp_path / "model"))
    refused(edit(copy, damage), named)
    with pytest.raises(CheckpointError):
        ingot.compile(copy, tmp_path / "a.ingot")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_scales_that_are_no_numbers(model_dir: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(model_dir, tmp_path / "model"))
    edit(copy, changed(f"{DOWN}_scales", lambda t: torch.full_like(t, 255)))
    checkpoint, _ = build(copy)
    with checkpoint, pytest.raises(CheckpointError, match=f"{DOWN}_scales holds scales"):
        checkpoint.read(DOWN)
