"""Whole small models on the simulated device, against `transformers`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from ingot import SamplingParams
from ingot.artifact.reader import Artifact
from tests.support import sunk_model
from tests.support.core import core
from tests.support.tiny_models import save_random
from tests.targets.cuda.simulation import FLAGS, compile_sketch, simulated

# Small, since the interpreter runs a program of a kernel in milliseconds.
OPTIONS = {"max_model_len": 64, "max_num_seqs": 8, "max_num_batched_tokens": 32}
TOLERANCE = {"float32": 1e-5, "bfloat16": 3e-2, "float16": 4e-3}
CASES = core(
    ("qwen3", "bfloat16"),
    further=[("gemma2", "float32"), ("llama_head_dim_20", "float32"), ("gpt2", "bfloat16"),
             ("qwen2_yarn", "bfloat16"), ("mistral", "float32"), ("gemma2", "bfloat16"),
             ("qwen3", "float16"), ("gemma2", "float16"), ("gpt2", "float16"),
             ("cohere_qk_norm", "float32"), ("mistral3", "float32"),
             ("deepseek_v2", "bfloat16"), ("deepseek_v3_odd", "float32")],
)  # fmt: skip


def prompt(length: int, seed: int = 0) -> list[int]:
    return torch.randint(256, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.cases(thorough=2)
@pytest.mark.parametrize("family, dtype", CASES)
def test_logits_are_those_of_transformers(tmp_path: Path, family: str, dtype: str) -> None:
    """Of a prompt that begins a second page."""
    model_dir = save_random(family, tmp_path / "model", tokenizer=True)
    artifact = compile_sketch(model_dir, tmp_path / "a.ingot", dtype=dtype, **OPTIONS)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    ids = prompt(18)
    with torch.no_grad(), simulated(artifact) as llm:
        expected = theirs(torch.tensor([ids])).logits[0]
        got = torch.tensor(llm.logits(ids))
    assert ((got - expected).norm() / expected.norm()).item() < TOLERANCE[dtype]


@pytest.mark.cases(thorough=1)
@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sinks_are_those_of_gpt_oss(tmp_path: Path, dtype: str) -> None:
    """In one step and in chunks, to the bit. The control: without sinks logits are others."""
    model = sunk_model.save(tmp_path / "model")
    with sunk_model.known():
        options = {"dtype": dtype, "verify_passes": True, **OPTIONS}
        artifact = compile_sketch(tmp_path / "model", tmp_path / "a.ingot", **options)
    ids = prompt(18)
    with simulated(artifact) as llm:
        got, chunks = (llm.logits(ids, chunk_tokens=count) for count in (32, 7))
        single = llm.logits(ids[:3], chunk_tokens=1)
    assert (got == chunks).all() and (got[:3] == single).all()
    expected = [sunk_model.judged(model, ids, sinks=sinks) for sinks in (True, False)]
    errors = [sunk_model.error(torch.tensor(got), each) for each in expected]
    assert errors[0] < TOLERANCE[dtype] and errors[1] > 4e-2


@pytest.mark.cases(thorough=1)
@pytest.mark.parametrize("dtype, narrow", [("float32", "bfloat16"), ("float16", "float16")])
@pytest.mark.thorough
def test_integers_are_multiplied_with_16_bits(tmp_path: Path, dtype: str, narrow: str) -> None:
    """Of a float32 model, too. Rewriting and grouping move the logits as little as they may."""
    model_dir = save_random("qwen3", tmp_path / "model", tokenizer=True)
    options = {"dtype": dtype, "quantize": "int8", "verify_passes": True, **OPTIONS}
    artifact = compile_sketch(model_dir, tmp_path / "a.ingot", **options)
    plan = Artifact.open(artifact, flags=FLAGS).plan
    multiplied = {
        plan.buffer(i.inputs["x"]).dtype
        for i in plan.instructions
        if i.op == "linear" and plan.buffer(i.inputs["weight"]).format.is_scaled
    }
    assert multiplied == {narrow}
    theirs = transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    ids = prompt(18)
    with torch.no_grad(), simulated(artifact) as llm:
        expected = theirs(torch.tensor([ids])).logits[0]
        got = torch.tensor(llm.logits(ids))
    assert ((got - expected).norm() / expected.norm()).item() < TOLERANCE["bfloat16"]


@pytest.fixture(scope="module", params=["qwen3", "deepseek_v2"])
def artifact(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cuda")
    model_dir = save_random(request.param, folder / "model", tokenizer=True)
    return compile_sketch(model_dir, folder / "a.ingot", dtype="bfloat16", **OPTIONS)


@pytest.mark.cases(thorough=1)
@pytest.mark.deterministic
@pytest.mark.thorough
def test_outputs_do_not_depend_on_company(artifact: Path) -> None:
    """Alone, side by side in a bucket that is padded, and in chunks of other sizes."""
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, detokenize=False)
    prompts = [prompt(n, n) for n in (1, 3, 6)]
    with simulated(artifact) as llm:
        together = [out.outputs[0].token_ids for out in llm.generate(prompts, params)]
        alone = [llm.generate([one], params)[0].outputs[0].token_ids for one in prompts]
        whole, chunks = llm.logits(prompts[2]), llm.logits(prompts[2], chunk_tokens=4)
        single = llm.logits(prompts[2], chunk_tokens=1)
    assert together == alone
    assert (whole == chunks).all() and (whole == single).all()
