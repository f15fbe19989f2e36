"""vLLM's arguments: those that mean something do it, harmless ones pass, others are refused."""

from __future__ import annotations

import asyncio
import inspect
import pydoc
from pathlib import Path

import numpy as np
import pytest

import ingot
from ingot import compiled as door
from ingot.artifact.reader import Artifact
from ingot.compiler.options import CompileOptions
from ingot.errors import ArtifactError, UsageError
from ingot.hub import names
from ingot.runtime.vllm_arguments import CONSTRUCTOR

OWN = {
    "model", "compile_options", "max_model_len", "kv_cache_bytes", "num_threads", "seed",
    "config", "on_step",
}  # fmt: skip
ACTING = {row.name for row in CONSTRUCTOR if row.acts}
USUAL = {
    "tokenizer": None, "tokenizer_mode": "auto", "trust_remote_code": False,
    "tensor_parallel_size": 1, "dtype": "auto", "quantization": None, "revision": None,
    "seed": None, "gpu_memory_utilization": 0.9, "swap_space": 4, "cpu_offload_gb": 0,
    "enforce_eager": True, "disable_custom_all_reduce": False, "max_num_seqs": 8,
    "max_num_batched_tokens": 32, "max_model_len": 64, "enable_prefix_caching": False,
    "kv_cache_dtype": "auto", "disable_log_stats": True, "enable_chunked_prefill": True,
    "pipeline_parallel_size": 1, "load_format": "auto", "speculative_config": None,
}  # fmt: skip


@pytest.fixture
def compiles(tmp_path, monkeypatch, fake_artifact):
    """A model directory, and the options that it was compiled with."""
    (tmp_path / "config.json").write_text("{}")
    seen: list[CompileOptions | None] = []

    def resolve(path, options=None):
        seen.append(options)
        return fake_artifact

    monkeypatch.setattr(door, "resolve", resolve)
    return tmp_path, seen


@pytest.mark.parametrize("kind", [ingot.LLM, ingot.AsyncLLM])
def test_the_usual_arguments_of_a_script_are_taken(fake_artifact, kind):
    llm = kind(fake_artifact, **USUAL)
    try:
        config = llm._engine.config
        assert (llm.max_model_len, config.prefix_cache) == (64, False)
        assert (config.max_num_seqs, config.max_num_batched_tokens) == (8, 32)
    finally:
        llm.close()


def test_a_model_directory_is_compiled_as_they_say(compiles):
    folder, seen = compiles
    given = {
        "dtype": "torch.bfloat16", "quantization": "int8", "kv_cache_dtype": "int8",
        "max_num_seqs": np.int64(8), "max_num_batched_tokens": 128,
    }  # fmt: skip
    ingot.LLM(folder, **given, compile_options={"targets": "cpu:portable"}).close()
    wanted = CompileOptions(
        dtype="bfloat16", quantize="int8", kv_dtype="int8", max_num_seqs=8,
        max_num_batched_tokens=128, targets="cpu:portable",
    )  # fmt: skip
    ingot.LLM(folder, dtype="float").close()
    ingot.LLM(folder, dtype="half").close()
    ingot.LLM(folder, dtype="auto", quantization=None, max_num_seqs=None).close()
    assert seen == [wanted, *(CompileOptions(dtype=d) for d in ("float32", "float16")), None]


def test_a_name_on_the_hub_and_its_revision(compiles, monkeypatch):
    folder, seen = compiles
    asked = []
    monkeypatch.setattr(names, "model_path", lambda *name: asked.append(name) or folder)
    ingot.LLM("Tiny/llama", revision="v1", dtype="float32").close()
    ingot.LLM(folder).close()
    assert asked == [("Tiny/llama", "v1"), (folder, None)]
    assert seen == [CompileOptions(dtype="float32"), None]
    with pytest.raises(UsageError):
        ingot.LLM("Tiny/llama", dtype="float8")
    assert len(asked) == 2  # nothing is downloaded for arguments that are wrong


def test_compile_takes_a_name_on_the_hub(tmp_path, monkeypatch):
    asked, compiled = [], []
    monkeypatch.setattr(names, "model_path", lambda *name: asked.append(name) or tmp_path)
    monkeypatch.setattr("ingot.compiling.compile_checked", lambda *given: compiled.append(given))
    ingot.compile("Tiny/llama", "out.ingot", revision="v1", dtype="float32")
    assert asked == [("Tiny/llama", "v1")]
    assert compiled == [(tmp_path, Path("out.ingot"), CompileOptions(dtype="float32"))]


def test_every_row_is_taken_at_its_harmless_values(compiles):
    folder, seen = compiles
    for row in CONSTRUCTOR:
        for value in row.harmless:
            ingot.LLM(folder, **{row.name: value}).close()
    assert set(seen) == {None}


@pytest.mark.parametrize("row", CONSTRUCTOR, ids=lambda row: row.name)
def test_any_other_value_is_refused_with_what_to_do(compiles, row):
    folder, seen = compiles
    with pytest.raises(UsageError) as caught:
        ingot.LLM(folder, **{row.name: [object]})
    shown = row.compile or row.config or row.option
    assert caught.value.found.startswith((f"{row.name} is [", f"{shown} is ["))
    assert caught.value.hint
    assert not seen or row.option  # those are checked by the model


@pytest.mark.parametrize(
    ("given", "found", "hint"),
    [
        ({"tensor_parallel_size": 2}, "tensor_parallel_size is 2", "Supported here: 1. A model"),
        ({"tensor_parallel_size": True}, "tensor_parallel_size is True", "one machine"),
        ({"trust_remote_code": True}, "trust_remote_code is True", "No code"),
        ({"gpu_memory_utilization": 0.5}, "gpu_memory_utilization is 0.5", "kv_cache_bytes"),
        (
            {"quantization": "awq"},
            "quantization is 'awq'",
            "None, 'auto', 'int8', 'int6', 'int5', 'int4'",
        ),
        ({"dtype": "float8"}, "dtype is 'float8'", "'half'. What a model directory"),
        ({"temprature": 1}, "no argument 'temprature'", "coming_from"),
        ({"num_thread": 1}, "no argument 'num_thread'; 'num_threads'?", "coming_from"),
        ({"tensor_paralel_size": 1}, "'tensor_parallel_size'?", "coming_from"),
        ({"kv_cache_bytes": 1, "kv_cache_memory_bytes": 1}, "kv_cache_bytes is given", "one"),
        ({"config": ingot.EngineConfig(), "enable_prefix_caching": True}, "config and", "Engine"),
        ({"compile_options": {"dtype": "float32"}, "dtype": "bfloat16"}, "dtype is given", "out"),
        ({"enable_prefix_caching": "yes"}, "prefix_cache is 'yes'", "True or False"),
        ({"max_num_seqs": 1.5}, "max_num_seqs is 1.5", "an integer"),
        ({"speculative": "eagle"}, "speculative is 'eagle'", "'ngram' or None"),
        ({"speculative_config": "ngram"}, "speculative_config is 'ngram'", 'a dict, such as {"m'),
        ({"speculative_config": {"method": "eagle"}}, "has method 'eagle'", "the method 'ngram'"),
        ({"speculative_config": {"model": "m/draft"}}, "model 'm/draft'", "without a model"),
        ({"speculative_config": {"method": "ngram", "model": "m"}}, "model 'm'", "without a model"),
        (
            {"speculative_config": {"method": "ngram", "draft_tensor_parallel_size": 1}},
            "has 'draft_tensor_parallel_size'",
            "prompt_lookup_min",
        ),
        (
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 0}},
            "num_speculative_tokens is 0",
            "[1, 64]",
        ),
        ({"config": ingot.EngineConfig(), "speculative": "ngram"}, "config and spec", "Engine"),
    ],
)
def test_a_refusal_says_what_was_given_and_what_to_use(compiles, given, found, hint):
    folder, seen = compiles
    with pytest.raises(UsageError) as caught:
        ingot.LLM(folder, **given)
    assert found in caught.value.found and hint in caught.value.hint and not seen


@pytest.mark.parametrize("name", ["dtype", "quantization", "kv_cache_dtype"])
def test_an_artifact_is_compiled_already(fake_artifact, name):
    value = {"dtype": "float32"}.get(name, "int8")
    for model in (fake_artifact, Artifact.open(fake_artifact)):
        with pytest.raises(UsageError, match=f"{name} is '{value}', but .* compiled already"):
            ingot.LLM(model, **{name: value})


def test_a_model_that_is_not_there_is_still_the_first_fault(tmp_path):
    with pytest.raises(ArtifactError, match="does not exist"):
        ingot.LLM(tmp_path / "none", dtype="bfloat16", max_num_seqs=4)


@pytest.mark.parametrize("kind", [ingot.LLM, ingot.AsyncLLM])
def test_help_shows_every_argument_with_its_meaning(kind):
    shown = inspect.signature(kind).parameters
    assert set(shown) == OWN | ACTING | {"vllm"}
    assert (shown["dtype"].default, shown["seed"].default) == ("auto", 0)
    text = pydoc.render_doc(kind, renderer=pydoc.plaintext)
    assert [name for name in shown if f"{name}: " not in text.partition("Args:")[2]] == []


GREEDY = ingot.SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
CHAT = [{"role": "user", "content": "b"}]


def test_calls_take_what_changes_nothing(llm):
    plain, chat = llm.generate([[5]], GREEDY), llm.chat(CHAT, GREEDY)
    same = llm.generate([[5]], GREEDY, use_tqdm=False, lora_request=None, priority=None)
    again = llm.chat(CHAT, GREEDY, lora_request=None, chat_template_content_format="auto")
    assert same[0].outputs[0].token_ids == plain[0].outputs[0].token_ids
    assert (again[0].prompt, again[0].outputs[0].text) == (chat[0].prompt, chat[0].outputs[0].text)


def test_calls_refuse_the_rest(llm):
    for call in (llm.generate, llm.chat):
        with pytest.raises(UsageError, match="lora_request is 'x'") as caught:
            call(CHAT, GREEDY, lora_request="x")
        assert "Merge the adapter" in caught.value.hint
    with pytest.raises(UsageError, match=r"no argument 'prority'; 'priority'\?"):
        llm.generate([[5]], GREEDY, prority=1)
    with pytest.raises(UsageError, match=r"'add_generation_prompt'\?"):
        llm.chat(CHAT, GREEDY, add_generation_promt=False)


def test_asynchronous_calls_do_the_same(fake_artifact):
    async def texts():
        async with ingot.AsyncLLM(fake_artifact) as llm:
            last = [
                [output async for output in outputs][-1].prompt
                for outputs in (
                    llm.generate("b", GREEDY, lora_request=None),
                    llm.chat(CHAT, GREEDY, lora_request=None, add_generation_prompt=False),
                )
            ]
            for outputs in (
                llm.generate("b", GREEDY, lora_request="x"),
                llm.chat(CHAT, GREEDY, lora_request="x"),
                llm.chat(CHAT, GREEDY, add_generation_promt=False),
            ):
                with pytest.raises(UsageError, match=r"lora_request|add_generation_prompt"):
                    _ = [output async for output in outputs]
            return last

    assert asyncio.run(texts()) == ["b", "<s>[user]b"]


def test_typed_prompts_are_prompts(llm):
    tokens = ingot.TokensPrompt(prompt_token_ids=[5], prompt="x", cache_salt="s")
    outputs = llm.generate([ingot.TextPrompt(prompt="b"), tokens], GREEDY)
    assert [output.prompt for output in outputs] == ["b", "x"]
    assert ingot.SamplingParams(output_kind=ingot.RequestOutputKind.DELTA) != GREEDY


@pytest.mark.parametrize(
    ("given", "lookup"),
    [
        ({"speculative": "ngram"}, (5, 2, 4)),
        ({"speculative_config": {"method": "ngram"}}, (5, 2, 4)),
        ({"speculative_config": {"model": "[ngram]", "num_speculative_tokens": 3}}, (3, 2, 4)),
        ({"speculative_config": {"method": "ngram", "prompt_lookup_max": 3}}, (5, 3, 3)),
        ({"speculative_config": {"method": "ngram", "prompt_lookup_min": 1,
                                 "prompt_lookup_max": 7, "num_speculative_tokens": 8}}, (8, 1, 7)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", [ingot.LLM, ingot.AsyncLLM])
def test_speculation_is_asked_for_in_both_spellings(fake_artifact, kind, given, lookup):
    llm = kind(fake_artifact, **given)
    try:
        config = llm._engine.config
        assert config.speculative == "ngram"
        assert config.guesses == lookup
    finally:
        llm.close()
