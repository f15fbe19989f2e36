"""Greedy texts of onnxruntime and of onnxruntime-genai are ours, token by token."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import onnxruntime_genai
import pytest

from ingot.onnx import export_onnx
from ingot.onnx.output import GENAI_CONFIG
from ingot.runtime.llm import LLM
from ingot.runtime.params import SamplingParams
from tests.end_to_end.support import Compile, compile_case, random_tokens
from tests.onnx.support import CACHED, exported, greedy
from tests.support.core import core

COUNT = 24


def ours(artifact: Path, prompt: list[int]) -> list[int]:
    params = SamplingParams(temperature=0, max_tokens=COUNT, ignore_eos=True, detokenize=False)
    with LLM(artifact) as llm:
        return list(llm.generate([prompt], params)[0].outputs[0].token_ids)


FIRST = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gpt2")
LATER = ("phi3", "gemma3", "glm4", "cohere2", "deepseek_v2", "deepseek_v3")


@pytest.mark.cases(thorough=1)
@pytest.mark.parametrize(
    ("name", "opset"),
    core(
        further=[*((name, 23) for name in FIRST), ("gemma2", 18)],
        slow=product((*FIRST, *LATER), (23, 18)),
    ),
)
def test_greedy_tokens_are_those_of_the_artifact(name: str, opset: int, tmp_path: Path) -> None:
    _, artifact = compile_case(Compile(name, "float32", 300), tmp_path)
    _, folder = exported(name, opset=opset, max_model_len=300)
    for length in (1, 30):
        prompt = random_tokens(length)
        assert greedy(folder / CACHED, prompt, COUNT) == ours(artifact, prompt)


def by_genai(model: onnxruntime_genai.Model, prompt: list[int]) -> list[int]:
    """The likeliest tokens after a prompt."""
    params = onnxruntime_genai.GeneratorParams(model)
    params.set_search_options(do_sample=False, max_length=len(prompt) + COUNT)
    generator = onnxruntime_genai.Generator(model, params)
    generator.append_tokens(prompt)
    while not generator.is_done():
        generator.generate_next_token()
    text = [int(token) for token in generator.get_sequence(0)]
    assert text[: len(prompt)] == prompt
    return text[len(prompt) :]


@pytest.mark.slow
def test_genai_loads_the_folder_and_generates(shakespeare_dir: Path, tmp_path: Path) -> None:
    """The real package, with the bundled model: it encodes and continues a text as we do."""
    folder = tmp_path / "onnx"
    export_onnx(shakespeare_dir, folder)
    model = onnxruntime_genai.Model(str(folder))
    tokenizer = onnxruntime_genai.Tokenizer(model)
    prompt = [int(token) for token in tokenizer.encode("First Citizen:\nBefore we proceed")]
    assert by_genai(model, prompt) == greedy(folder / CACHED, prompt, COUNT)


# Learned positions, windows beside whole layers, rows that are key and value alike, and integers.
WITH_GENAI: dict[str, dict[str, object]] = {
    "gpt2": {"opset": 23, "max_model_len": 300},
    "gemma2": {"opset": 23, "max_model_len": 300},
    "deepseek_v3": {"opset": 23, "max_model_len": 300},
    "llama_tied": {"opset": 23, "group_size": "", "quantize": "int4"},
}


def that_ends_with(token: int, folder: Path, place: Path) -> Path:
    """The export, of which another token ends a text: those of random models end at once."""
    place.mkdir()
    for file in folder.iterdir():
        (place / file.name).symlink_to(file)
    config = json.loads((folder / GENAI_CONFIG).read_text())
    config["model"]["eos_token_id"] = token
    (place / GENAI_CONFIG).unlink()
    (place / GENAI_CONFIG).write_text(json.dumps(config))
    return place


@pytest.mark.cases(thorough=1)
@pytest.mark.thorough
@pytest.mark.parametrize("name", WITH_GENAI)
def test_genai_runs_models_of_every_structure(name: str, tmp_path: Path) -> None:
    dtype = "bfloat16" if "quantize" in WITH_GENAI[name] else "float32"
    _, folder = exported(name, dtype, **WITH_GENAI[name])
    prompt = random_tokens(30)
    expected = greedy(folder / CACHED, prompt, COUNT)
    end = next(token for token in range(320) if token not in expected)
    model = onnxruntime_genai.Model(str(that_ends_with(end, folder, tmp_path / "onnx")))
    assert by_genai(model, prompt) == expected
