"""Checkpoints in floats of 8 and 4 bits, from their files to logits: refused, or dequantized."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import ingot
from ingot.api import LLM
from ingot.compiler.explain import explain
from ingot.errors import CheckpointError
from tests.end_to_end.support import judge, judged_logits, random_tokens, relative_error
from tests.models.test_dense_spellings import MISTRAL3, OLDER, renamed, rewrite, tower
from tests.support.checkpoints import build, edit, plain_logits
from tests.support.core import core
from tests.support.float_checkpoints import FLOAT_LAYOUTS, plain_floats, rewrite_floats
from tests.support.tiny_models import save_random

LONGEST = 64
TOKENS = 40
# Model and layout. Sizes of the second are no multiples of a block, and one of its matrices,
# kv_b_proj, is cut up; experts are stacked.
CASES = core(
    ("llama", "fp8-block"),
    further=[
        ("deepseek_v3_experts", "fp8-block"),
        ("qwen3moe", "fp8-tensor"),
        ("llama", "float-quantized"),
        ("llama", "nvfp4"),
    ],
    slow=[(name, kind) for name in ("mistral3", "gptoss", "phi3") for kind in FLOAT_LAYOUTS],
)


def written(name: str, layout: str, folder: Path) -> tuple[Path, Path]:
    """A checkpoint in that layout, and the same model in float32."""
    model_dir = save_random(name, folder / "model", tokenizer=True)
    known = rewrite_floats(model_dir, FLOAT_LAYOUTS[layout])
    assert len(known) >= 2 * 4
    numbers = Path(shutil.copytree(model_dir, folder / "numbers"))
    plain_floats(numbers, known)
    return model_dir, numbers


@pytest.mark.cases(thorough=2)
@pytest.mark.parametrize(("name", "layout"), CASES)
def test_the_module_has_the_numbers(name: str, layout: str, tmp_path: Path) -> None:
    model_dir, numbers = written(name, layout, tmp_path)
    tokens = random_tokens(TOKENS)
    want = judged_logits(judge(numbers), tokens)
    assert want.std() > 0.1
    assert relative_error(plain_logits(model_dir, tokens), want) <= 1e-5


@pytest.mark.parametrize("layout", core("fp8-block", further=FLOAT_LAYOUTS))
def test_without_the_option_they_are_refused(layout: str, tmp_path: Path) -> None:
    model_dir, _ = written("llama", layout, tmp_path / "in")
    with pytest.raises(CheckpointError, match="no storage of an artifact holds") as caught:
        ingot.compile(model_dir, tmp_path / "out" / "a.ingot")
    assert "--dequantize" in caught.value.hint
    assert not list((tmp_path / "out").glob("*"))
    told = explain(model_dir)
    assert any("--dequantize" in reason.hint for reason in told.reasons), told


@pytest.mark.parametrize(
    ("name", "layout", "options", "limit"),
    core(
        further=[("deepseek_v3_experts", "fp8-block", {"dtype": "float32"}, 1e-4)],
        slow=[
            ("llama", "nvfp4", {"dtype": "float32"}, 1e-4),
            ("llama", "float-quantized", {"dtype": "bfloat16"}, 3e-2),
            ("qwen3moe", "fp8-tensor", {"dtype": "float32"}, 1e-4),
            ("llama", "fp8-block", {"quantize": "int8"}, 4e-2),
        ],
    ),
)
def test_compiled_logits_are_those_of_the_numbers(
    name: str, layout: str, options: dict[str, str], limit: float, tmp_path: Path
) -> None:
    model_dir, numbers = written(name, layout, tmp_path)
    report = ingot.compile(
        model_dir, tmp_path / "a.ingot", dequantize=True, max_model_len=LONGEST, **options
    )
    assert all("dequantized" in text or "rounded" in text for text in report.kept)
    model = judge(numbers)
    with LLM(report.artifact) as llm:
        for length in (1, 17, TOKENS):
            tokens = random_tokens(length)
            got = llm.logits(tokens)
            assert relative_error(got, judged_logits(model, tokens)) <= limit
            assert llm.logits(tokens, chunk_tokens=7).tobytes() == got.tobytes()


@pytest.mark.thorough
def test_the_tower_of_ministral_3_in_float8(tmp_path: Path) -> None:
    """As it is published: the text model inside one of images, with one scale a matrix."""
    model_dir, numbers = written("mistral3", "fp8-tensor", tmp_path)
    quantization = json.loads((model_dir / "config.json").read_text())["quantization_config"]
    rewrite(model_dir, tower(MISTRAL3))
    inside = rewrite(
        edit(model_dir, renamed(OLDER)),
        lambda values: {
            **values,
            "quantization_config": values["text_config"].pop("quantization_config", quantization),
        },
    )
    one, other = build(inside)[0], build(numbers)[0]
    with one, other:
        assert len(one.quantized) == 2 * 7
        for name in other.names:
            assert torch.equal(one.read(name), other.read(name)), name
