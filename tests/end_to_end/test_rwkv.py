"""Compiled RWKV-7: the logits of the paper's formulas, the same bits in any company, and sequences
that go on from a state in a file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from ingot.compiler.compile import compile_model
from ingot.compiler.explain import explain
from ingot.compiler.needs import Use
from ingot.compiler.options import CompileOptions
from ingot.errors import RequestError, TokenizerError
from ingot.models import registry
from ingot.models.model_dir import ModelDir
from ingot.models.pth.states import load_state
from ingot.runtime.config import EngineConfig
from ingot.runtime.llm import LLM
from ingot.runtime.params import SamplingParams
from ingot.runtime.pool_size import PoolSize
from tests.end_to_end.support import check_rows, random_tokens, relative_error
from tests.runtime.test_company import compare, prompts_of
from tests.support import rwkv_models
from tests.support.checkpoints import module_logits, plain_module
from tests.support.core import core
from tests.support.made_once import made_once
from tests.support.rwkv_reference import Reference

LIMITS = {"float32": 2e-5, "bfloat16": 4e-2}
VOCABULARY = rwkv_models.vocabulary([b"the ", b"\n\n", b"User", b"Assistant", b"  "])
Made = Callable[..., Path]


@pytest.fixture(scope="session")
def made() -> Made:
    """The folder of a model, and of the artifact that is compiled from it, once a test run."""

    def made(dtype: str, quantize: str = "none", form: str = "pth") -> Path:
        options = CompileOptions(
            dtype=dtype,
            quantize=quantize,
            group_size="" if quantize == "none" else "32",
            max_model_len=312,
        )

        def compile_in(folder: Path) -> None:
            tensors = rwkv_models.tensors(head_dim=32)
            source = folder / "model"
            if form == "fla":
                rwkv_models.save_fla(source, tensors)
            else:
                source.mkdir()
                rwkv_models.save_pth(source / "rwkv7.pth", tensors)
            (source / "rwkv_vocab_v20230424.txt").write_bytes(VOCABULARY)
            model_dir = ModelDir.open(source if form == "fla" else source / "rwkv7.pth")
            compile_model(model_dir, folder / "model.ingot", options)

        name = hashlib.sha256(f"rwkv {dtype} {quantize} {form}".encode()).hexdigest()
        return made_once(f"case-{name}", compile_in)

    return made


def reference(heads_eps: float = 64e-5) -> Reference:
    tensors = rwkv_models.tensors(head_dim=32)
    return Reference({name: t.numpy() for name, t in tensors.items()}, heads_eps)


@pytest.mark.parametrize(
    ("dtype", "form"),
    core(("float32", "pth"), further=[("float32", "fla"), ("bfloat16", "pth")]),
)
def test_compiled_logits_are_those_of_the_formulas(dtype: str, form: str, made: Made) -> None:
    folder = made(dtype, form=form)
    model = folder / "model" / ("" if form == "fla" else "rwkv7.pth")
    expected = reference(32e-5 if form == "fla" else 64e-5)
    with LLM(folder / "model.ingot") as llm:
        check_rows(llm, expected.logits, plain_module(model), (1, 2, 17, 150), LIMITS[dtype])
        plan = llm.artifact.plan
    assert plan.slot_bytes == 3 * 4 * (64 + 64 * 32 + 64) and not plan.page_sizes()


@pytest.mark.thorough
@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_matrices_in_integers_leave_low_products_alone(quantize: str, made: Made) -> None:
    folder = made("bfloat16", quantize)
    with LLM(folder / "model.ingot") as llm:
        stored = {b.name: b.format.dtype for b in llm.artifact.plan.of_kind("weight")}
        tokens = random_tokens(60)
        expected = module_logits(plain_module(folder / "model" / "rwkv7.pth"), tokens)
        assert relative_error(llm.logits(tokens), expected) < {"int8": 1e-1, "int4": 5e-1}[quantize]
    mixer = "model.layers.1.self_attn"
    assert {stored[f"{mixer}.{name}_proj.weight"] for name in "rkvo"} == {quantize}
    low = (f"{mixer}.{n}.{p}.weight" for n in ("decay", "rate", "gate") for p in ("up", "down"))
    assert {stored[name] for name in low} == {"bfloat16"}


@pytest.mark.thorough
@pytest.mark.deterministic
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_company_preemption_and_cached_prefixes_change_no_bit(dtype: str, made: Made) -> None:
    artifact = made(dtype) / "model.ingot"
    prompts = prompts_of(0, 320)
    assert compare(artifact, prompts, config=EngineConfig(chunk_tokens=7)) == 0
    with LLM(artifact) as llm:
        nbytes = PoolSize(num_pages=0, num_slots=3).nbytes(llm.artifact.plan)
    assert compare(artifact, prompts, kv_cache_bytes=nbytes) == 0


def test_texts_are_read_by_the_vocabulary_and_end_where_the_user_speaks(made: Made) -> None:
    with LLM(made("float32") / "model.ingot") as llm:
        tokenizer = llm.get_tokenizer()
        text = "User: the ab\n\nAssistant:"
        message = [{"role": "user", "content": " the ab "}]
        assert tokenizer.apply_chat_template(message, add_generation_prompt=True) == text
        ids = tokenizer.encode(text)
        assert (ids[0], tokenizer.decode(ids)) == (259, text)
        params = llm.get_default_sampling_params()
        assert params.stop == ("\n\nUser",)
        assert llm.artifact.manifest.model.eos_token_ids == (0,)
        out = llm.generate([text], SamplingParams(temperature=0, max_tokens=8))[0].outputs[0]
        assert len(out.token_ids) <= 8


def test_what_is_kept_does_not_grow_with_a_sequence(made: Made) -> None:
    folder = made("float32")
    with LLM(folder / "model.ingot") as llm:
        record_bytes = llm.artifact.plan.slot_bytes
    told = explain(folder / "model" / "rwkv7.pth", use=Use(context=2**20, seats=3))
    assert told.supported and "time mixing in 2 heads of 32 x 32" in " ".join(told.features)
    (way,) = (each for each in told.ways if each.name == "float32")
    cache = way.caches[0]
    assert (cache.bytes_per_token, cache.bytes_per_sequence) == (0, record_bytes)
    assert cache.cache_bytes == 3 * record_bytes


def test_a_tuned_state_is_what_a_sequence_goes_on_from(made: Made, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(3)
    states = [torch.randn(2, 32, 32, generator=generator) for _ in range(3)]
    tuned = {f"blocks.{i}.att.time_state": state for i, state in enumerate(states)}
    path = rwkv_models.save_pth(tmp_path / "state.pth", tuned)
    with LLM(made("float32") / "model.ingot") as llm:
        plan = llm.artifact.plan
    records = load_state(path, plan)
    assert records.keys() == {state.name for state in plan.spec.states}
    assert [record.shape for record in records.values()] == [s.record for s in plan.spec.states]
    # The oracle keeps [value, key], as the file does; a record has a row for each key.
    kept = [record for record in records.values() if record.shape == (64, 32)]
    for state, record in zip(states, kept, strict=True):
        assert np.array_equal(record.reshape(2, 32, 32), state.numpy().transpose(0, 2, 1))
    assert not any(r.any() for r in records.values() if r.shape == (1, 64))


@pytest.mark.thorough
def test_a_model_that_speaks_codes_has_no_tokenizer(tmp_path: Path) -> None:
    """Its head gives logits for the first tokens alone, and it reads all."""
    tensors = rwkv_models.tensors(layers=2, rows=700, head_rows=300)
    path = rwkv_models.save_pth(tmp_path / "speech.pth", tensors)
    options = CompileOptions(dtype="float32", max_model_len=64)
    compile_model(ModelDir.open(path), tmp_path / "out", options)
    expected = Reference({name: t.numpy() for name, t in tensors.items()})
    tokens = [699, 650, 3, 299, 310, 7]
    with LLM(tmp_path / "out") as llm:
        assert relative_error(llm.logits(tokens), expected.logits(tokens)) < LIMITS["float32"]
        assert llm.artifact.manifest.model.eos_token_ids == (299,)
        params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, detokenize=False)
        out = llm.generate([{"prompt_token_ids": tokens}], params)[0].outputs[0]
        assert max(out.token_ids) < 300
        with pytest.raises(RequestError, match="the prompt has token 700"):
            llm.logits([700])
        with pytest.raises(TokenizerError, match="has no tokenizer"):
            llm.get_tokenizer()


@pytest.mark.thorough
def test_a_model_of_speech_reads_its_tables_as_one(tmp_path: Path) -> None:
    tensors = rwkv_models.tensors(layers=2, rows=100 + 3 + 40 + 60, head_rows=100)
    folder = rwkv_models.save_speech(tmp_path / "speech", tensors, (100, 3, 40, 60))
    model_dir = ModelDir.open(folder)
    model_dir.check()
    config = registry.load_config(model_dir)
    assert (config.vocab_size, config.num_logits, config.eos_token_ids) == (203, 100, (99,))
    expected = Reference({name: t.numpy() for name, t in tensors.items()}, 16e-5)
    tokens = [100, 202, 143, 5, 99]
    got = module_logits(plain_module(folder), tokens)
    assert relative_error(got, expected.logits(tokens)) < LIMITS["float32"]
