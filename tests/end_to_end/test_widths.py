"""Models whose widths no group divides, in integers at their defaults."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from ingot.runtime.llm import LLM
from ingot.runtime.params import SamplingParams
from tests.end_to_end import integers
from tests.end_to_end.support import (
    QUANTIZED_LIMITS,
    Compile,
    Compiled,
    check_logits,
    random_tokens,
)
from tests.support.checkpoints import edit
from tests.support.core import core

WIDTHS = ("llama_width_36", "llama_width_100", "qwen3_width_576")
GREEDY = SamplingParams(temperature=0, max_tokens=5, logprobs=2, ignore_eos=True)


def run(name: str, quantize: str, kv_dtype: str, group_size: str = "") -> Compile:
    return Compile(
        name, "bfloat16", 128, quantize=quantize, kv_dtype=kv_dtype, group_size=group_size
    )


ALL = [run(name, *kinds) for name in WIDTHS for kinds in (("int8", "int8"), ("int4", "auto"))]
EIGHT = ALL[2]
CHANNEL = run("llama_width_36", "int8", "auto", "channel")


def spelled(case: Compile) -> str:
    return f"{case.name}-{case.quantize}{case.group_size}"


@pytest.mark.cases(thorough=1)
@pytest.mark.parametrize("case", core(further=[EIGHT, *ALL, CHANNEL]), ids=spelled)
def test_any_width(case: Compile, compiled: Compiled) -> None:
    model_dir, artifact = compiled(case)
    with LLM(artifact) as llm:
        found = [b for b in llm.artifact.plan.of_kind("weight") if b.format.is_scaled]
        assert sum(len(b.sources) for b in found) >= 2 * 7 + 1, "every matrix is in integers"
        assert any(int(b.shape[-1]) % b.format.block for b in found) or case.group_size
        integers.check_integers(llm, model_dir, (1, 17, 100))
        if case.quantize == "int8":
            check_logits(llm, model_dir, (1, 17, 100), QUANTIZED_LIMITS["int8"])
        prompts = [random_tokens(length) for length in (3, 40, 17)]
        together = llm.generate(prompts, GREEDY)
        alone = [llm.generate([prompt], GREEDY)[0] for prompt in prompts]
    assert [each.outputs[0] for each in together] == [each.outputs[0] for each in alone]


@pytest.mark.thorough
def test_the_last_columns_count(compiled: Compiled, tmp_path: Path) -> None:
    """Negative control: the limit is not met by a model without the columns of a short group."""
    model_dir, artifact = compiled(EIGHT)
    other = shutil.copytree(model_dir, tmp_path / "other")
    edit(other, lambda tensors: [cut(each) for each in tensors.values()])
    with LLM(artifact) as llm, pytest.raises(AssertionError):
        check_logits(llm, other, (17,), QUANTIZED_LIMITS["int8"])


def cut(tensor: torch.Tensor) -> None:
    """Leaves out what is beyond the whole groups of 32."""
    tensor[..., tensor.shape[-1] // 32 * 32 :] = 0
