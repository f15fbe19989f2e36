"""Checkpoints whose experts are quantized one by one, from their files to tokens."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

import ingot
from ingot.api import LLM
from ingot.compare.stored import StoredWeights
from ingot.errors import CheckpointError
from ingot.ops.scaled import Scaled
from tests.end_to_end.support import judge, judged_logits, random_tokens, relative_error
from tests.end_to_end.test_quantized_checkpoints import as_numbers
from tests.support.checkpoints import plain_logits
from tests.support.core import core
from tests.support.quantized_checkpoints import LAYOUTS, Known, rewrite
from tests.support.tiny_models import save_random

LONGEST = 64
LIMIT = 0.04  # of logits: activations are rounded to int8
QWEN3 = "qwen3moe_unnormalised"
# Latent attention cuts up one of its matrices, which is read as numbers.
CASES = core(
    further=[(QWEN3, "awq"), ("deepseek_v3_experts", "int-quantized")],
    slow=[(QWEN3, "gptq"), (QWEN3, "gptq-zeros-v1"), (QWEN3, "int-quantized")],
)
MLP = "model.layers.1.mlp.experts"


def written(name: str, layout: str, folder: Path) -> tuple[Path, Path, dict[str, Known]]:
    """A checkpoint in that layout, the same model in numbers, and its integers."""
    model_dir = save_random(name, folder / "model", tokenizer=True)
    known = rewrite(model_dir, LAYOUTS[layout])
    assert f"{MLP}.0.gate_proj.weight" in known
    numbers = Path(shutil.copytree(model_dir, folder / "numbers"))
    as_numbers(numbers, known)
    return model_dir, numbers, known


@pytest.mark.cases(thorough=1)
@pytest.mark.parametrize(
    ("name", "layout"),
    core(
        ("deepseek_v3_experts", "int-quantized"),
        further=[(QWEN3, "awq"), (QWEN3, "gptq"), (QWEN3, "pack-quantized-zeros")],
    ),
)
def test_the_module_has_the_numbers(name: str, layout: str, tmp_path: Path) -> None:
    model_dir, numbers, _ = written(name, layout, tmp_path)
    tokens = random_tokens(40)
    want = judged_logits(judge(numbers), tokens)
    assert want.std() > 0.1
    assert relative_error(plain_logits(model_dir, tokens), want) <= 1e-5


@pytest.mark.cases(thorough=1)
@pytest.mark.parametrize(("name", "layout"), CASES)
def test_integers_are_kept_expert_by_expert(name: str, layout: str, tmp_path: Path) -> None:
    model_dir, numbers, known = written(name, layout, tmp_path)
    report = ingot.compile(model_dir, tmp_path / "a.ingot", max_model_len=LONGEST)
    model, tokens = judge(numbers), random_tokens(40)
    with LLM(report.artifact) as llm:
        opened, entry, plan = llm.artifact, llm.artifact.target, llm.artifact.plan
        weights = StoredWeights(opened, entry, plan)
        for part, kinds in (("gate_up_proj", ("gate_proj", "up_proj")), ("down_proj",) * 2):
            held = weights.read(plan.buffer(f"{MLP}.{part}"))
            assert isinstance(held, Scaled)
            assert torch.equal(held.dequantize(), stacked(known, kinds))
        got = llm.logits(tokens)
        assert relative_error(got, judged_logits(model, tokens)) <= LIMIT
        assert llm.logits(tokens, chunk_tokens=7).tobytes() == got.tobytes()
    assert any("dequantized" in text for text in report.kept) is (name != QWEN3)


def stacked(known: dict[str, Known], kinds: str | tuple[str, ...]) -> torch.Tensor:
    """The numbers of all experts of a layer, of one product after the other."""
    kinds = (kinds,) if isinstance(kinds, str) else kinds
    count = sum(name.startswith(MLP) for name in known) // 3
    return torch.stack(
        [
            torch.cat([known[f"{MLP}.{e}.{kind}.weight"].numbers() for kind in kinds])
            for e in range(count)
        ]
    )


def test_columns_of_experts_in_orders_of_their_own_are_refused(tmp_path: Path) -> None:
    model_dir, _, _ = written(QWEN3, "gptq-ordered", tmp_path)
    with pytest.raises(CheckpointError, match="experts") as caught:
        ingot.compile(model_dir, tmp_path / "a.ingot", max_model_len=LONGEST)
    assert "mlp.experts.gate_up_proj" in caught.value.found and "--dequantize" in caught.value.hint
    assert not list(tmp_path.glob("*.ingot*"))


@pytest.mark.thorough
def test_columns_of_experts_in_orders_of_their_own_are_read_as_numbers(tmp_path: Path) -> None:
    model_dir, numbers, _ = written(QWEN3, "gptq-ordered", tmp_path)
    options = {"dequantize": True, "dtype": "float32", "max_model_len": LONGEST}
    report = ingot.compile(model_dir, tmp_path / "a.ingot", **options)
    tokens = random_tokens(40)
    with LLM(report.artifact) as llm:
        want = judged_logits(judge(numbers), tokens)
        assert relative_error(llm.logits(tokens), want) <= 1e-4
