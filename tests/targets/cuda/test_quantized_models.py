"""Checkpoints in the quantized layouts of other programs whose integers have zeros, on the
simulated device."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from ingot.compiler.explain import explain
from ingot.compiler.options import CompileOptions
from tests.end_to_end.support import judge, judged_logits, random_tokens, relative_error
from tests.end_to_end.test_quantized_checkpoints import as_numbers
from tests.support.core import core
from tests.support.quantized_checkpoints import LAYOUTS, rewrite
from tests.support.tiny_models import save_random
from tests.targets.cuda.simulation import TARGET, compile_sketch, simulated

LIMIT = 1e-2  # of logits: bfloat16 activations, and no others are rounded
CASES = core(
    further=[("llama", "awq"), ("llama", "gptq-narrow")],
    slow=[("qwen3moe_unnormalised", "awq"), ("llama", "gptq-zeros"), ("llama", "gptq-8bit")],
)


@pytest.mark.parametrize(("name", "layout"), CASES)
def test_logits_are_those_of_the_numbers(name: str, layout: str, tmp_path: Path) -> None:
    """By `transformers`, and to the bit the same in chunks, which take other kernels."""
    model_dir = save_random(name, tmp_path / "model", "bfloat16", tokenizer=True)
    known = rewrite(model_dir, LAYOUTS[layout])
    numbers = Path(shutil.copytree(model_dir, tmp_path / "numbers"))
    as_numbers(numbers, known)
    told = explain(model_dir, CompileOptions(targets=(TARGET,)))
    assert told.supported and told.ways[0].default and told.ways[0].options == ()
    path = compile_sketch(
        model_dir, tmp_path / "a.ingot", max_model_len=32, max_num_seqs=4, max_num_batched_tokens=48
    )
    tokens = random_tokens(20)
    with simulated(path) as llm, torch.no_grad():
        formats = {str(b.format) for b in llm.artifact.plan.of_kind("weight")}
        got, chunks = llm.logits(tokens), llm.logits(tokens, chunk_tokens=7)
    assert ("int4-b16-zeros" in formats) is (layout == "gptq-narrow")
    assert any(each.endswith("-zeros") for each in formats) is (layout != "gptq-8bit")
    assert relative_error(got, judged_logits(judge(numbers), tokens)) <= LIMIT
    assert got.tobytes() == chunks.tobytes()
