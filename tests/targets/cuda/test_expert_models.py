"""Whole small models with experts on the simulated device, against `transformers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from ingot import SamplingParams
from ingot.runtime.verify import verify
from tests.support.core import core
from tests.support.mxfp4_model import dequantized, save_mxfp4
from tests.support.tiny_models import save_random
from tests.targets.cuda.simulation import compile_sketch, simulated
from tests.targets.cuda.test_models import OPTIONS, TOLERANCE, prompt

FAMILIES = ("qwen2moe", "mixtral", "qwen3moe", "olmoe", "granitemoe", "gptoss", "glm4moe_groups",
            "minimax", "ernie4moe", "hunyuanmoe")  # fmt: skip
INT4 = {"quantize": "int4", "group_size": 32}
# Sizes of 64, which int4 takes.
STORED: list[tuple[str, dict[str, Any]]] = [
    ("qwen3moe_unnormalised", {**INT4, "dtype": "bfloat16"}),
    ("gptoss_layer_types", {"quantize": "int8", "kv_dtype": "int8", "dtype": "bfloat16"}),
    ("qwen3moe_unnormalised", {"quantize": "int8", "dtype": "float32"}),
    ("qwen3moe_unnormalised", {**INT4, "dtype": "float16"}),
    ("mixtral", {"dtype": "bfloat16"}),
    ("qwen2moe", {"dtype": "float16"}),
]


def relative(got: torch.Tensor, expected: torch.Tensor) -> float:
    return ((got - expected).norm() / expected.norm()).item()


@pytest.mark.cases(thorough=1)
@pytest.mark.thorough
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_transformers(tmp_path: Path, family: str) -> None:
    """Of a prompt whose picks are listed, and token by token, to the bit."""
    model_dir = save_random(family, tmp_path / "model", tokenizer=True)
    artifact = compile_sketch(model_dir, tmp_path / "a.ingot", dtype="float32", **OPTIONS)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    ids = prompt(18)
    with torch.no_grad(), simulated(artifact) as llm:
        expected = theirs(torch.tensor([ids])).logits[0]
        got = torch.tensor(llm.logits(ids))
        single = torch.tensor(llm.logits(ids[:3], chunk_tokens=1))
    assert relative(got, expected) < TOLERANCE["float32"]
    assert torch.equal(single, got[:3])


@pytest.mark.cases(thorough=1)
@pytest.mark.parametrize("family, options", core(further=STORED[:2], slow=STORED))
def test_the_golden_outputs_are_reproduced(
    tmp_path: Path, family: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one piece; a prompt has the same bits in chunks whose picks are not listed."""
    monkeypatch.setattr("ingot.runtime.verify.WAYS", {"prefill": None})
    model_dir = save_random(family, tmp_path / "model", options["dtype"], tokenizer=True)
    limits = {"max_model_len": 20, "max_num_seqs": 4, "max_num_batched_tokens": 48}
    path = compile_sketch(model_dir, tmp_path / "a.ingot", **limits, **options)
    ids = prompt(18)
    with simulated(path) as llm:
        replayed = verify(llm)
        whole, chunks = llm.logits(ids), llm.logits(ids, chunk_tokens=7)
    replayed.raise_if_failed()
    assert replayed.num_positions >= 20
    assert (whole == chunks).all()


@pytest.mark.thorough
def test_experts_in_mxfp4(tmp_path: Path) -> None:
    """As gpt-oss is published; they become int8, by blocks of 32."""
    model_dir = save_mxfp4(tmp_path / "model")
    artifact = compile_sketch(model_dir, tmp_path / "a.ingot", dtype="bfloat16", **OPTIONS)
    ids = prompt(18)
    with torch.no_grad(), simulated(artifact) as llm:
        expected = dequantized(model_dir)(torch.tensor([ids])).logits[0]
        got = torch.tensor(llm.logits(ids))
    assert relative(got, expected) < TOLERANCE["bfloat16"]


@pytest.mark.slow
@pytest.mark.deterministic
def test_outputs_do_not_depend_on_company(tmp_path: Path) -> None:
    """Alone, side by side in a bucket that is padded, and in chunks of other sizes."""
    model_dir = save_random("qwen3moe", tmp_path / "model", tokenizer=True)
    artifact = compile_sketch(model_dir, tmp_path / "a.ingot", dtype="bfloat16", **OPTIONS)
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, detokenize=False)
    prompts = [prompt(n, n) for n in (1, 3, 20)]
    with simulated(artifact) as llm:
        together = [out.outputs[0].token_ids for out in llm.generate(prompts, params)]
        alone = [llm.generate([one], params)[0].outputs[0].token_ids for one in prompts]
        whole, chunks = llm.logits(prompts[2]), llm.logits(prompts[2], chunk_tokens=17)
        single = llm.logits(prompts[2], chunk_tokens=3)
    assert together == alone
    assert (whole == chunks).all() and (whole == single).all()
