"""Programs of others against `ingot serve`, each in an environment of its own with its package.

The newest of each is installed, so that a change of theirs shows; `openai` in each line in use.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from jsonschema import validate

from ingot.runtime.llm import LLM
from ingot.runtime.params import SamplingParams
from ingot.serve.http.app import build_app
from ingot.serve.local import LocalEngine
from tests.conftest import SHAKESPEARE
from tests.serve.clients.use_openai import MESSAGES, SCHEMA
from tests.serve.clients.venvs import python_with, ran
from tests.support.fake_engine import FakeModels
from tests.support.live_server import serving

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
LINES = ("1", "2", "3")  # major versions of `openai`


@pytest.fixture(scope="module")
def llm(shakespeare_artifact: Path) -> Iterator[LLM]:
    with LLM(shakespeare_artifact, num_threads=1) as llm:
        yield llm


@pytest.fixture(scope="module")
def address(llm: LLM) -> Iterator[str]:
    with serving(lambda: build_app(FakeModels(bard=LocalEngine(llm)))) as address:
        yield address


def said(llm: LLM, prompt: Any, **fields: Any) -> str:
    """What the model says to a prompt, with what its generation_config.json asks for."""
    params = llm.get_default_sampling_params()
    for name, value in fields.items():
        setattr(params, name, value)
    (output,) = llm.generate([prompt], params)
    return output.outputs[0].text


def scores(llm: LLM, tokens: list[int]) -> list[float]:
    """The log-probability of each token but the first."""
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1)
    (output,) = llm.generate([{"prompt_token_ids": tokens}], params)
    assert output.prompt_logprobs is not None
    found = zip(tokens[1:], output.prompt_logprobs[1:], strict=True)
    return [each[token].logprob for token, each in found if each is not None]


@pytest.mark.parametrize("line", LINES)
def test_the_official_client(line: str, llm: LLM, address: str) -> None:
    python = python_with(f"openai>={line},<{int(line) + 1}")
    found = json.loads(ran(python, HERE / "use_openai.py", f"{address}/v1", "bard"))
    assert found["version"].split(".")[0] == line and found["models"] == ["bard"]
    completion, chat, call = found["completions"], found["chats"], found["calls"]
    assert completion["text"] == completion["streamed"] == said(
        llm, "ROMEO:", seed=7, max_tokens=12
    )  # fmt: skip
    assert completion["usage"] == 12
    assert completion["scores"] == [scores(llm, [5, 6, 7]), scores(llm, [8, 9])]
    prompt = llm.chat_prompt(MESSAGES)
    assert chat["text"] == chat["streamed"] == said(llm, prompt, seed=3, max_tokens=12)
    assert chat["usage"][0] == chat["usage"][1]
    validate(json.loads(chat["held"]), SCHEMA)
    assert call["call"] == call["streamed"] and call["finish"] == "tool_calls"
    assert call["call"]["name"] == "weather"
    validate(json.loads(call["call"]["arguments"]), SCHEMA)
    assert found["errors"] == [
        [400, "invalid_value", "max_tokens"],
        [400, "context_length_exceeded", "prompt"],
        [404, "model_not_found", "model"],
    ]
    assert found["at_once"] == [said(llm, "ROMEO:", seed=seed, max_tokens=6) for seed in range(6)]


def test_the_line_that_other_tests_use_is_one_of_them() -> None:
    assert openai.__version__.split(".")[0] == LINES[-1]


def test_langchain(llm: LLM, address: str) -> None:
    python = python_with("langchain-openai")
    found = json.loads(ran(python, HERE / "use_langchain.py", f"{address}/v1", "bard"))
    prompt = llm.chat_prompt(MESSAGES)
    assert found["text"] == found["streamed"] == said(llm, prompt, seed=3, max_tokens=60)
    assert found["num_chunks"] > 2 and found["usage"][0] == found["usage"][1]
    ((name, arguments),) = found["calls"]
    assert found["streamed_calls"] == found["calls"] and name == "Forecast"
    for days in (arguments["days"], found["held"]["days"]):
        assert 0 <= days <= 9
    prompts = [llm.chat_prompt([{"role": "user", "content": text}]) for text in "abc"]
    assert found["batch"] == [said(llm, each, seed=3, max_tokens=60) for each in prompts]


def test_lm_evaluation_harness(llm: LLM, address: str, tmp_path: Path) -> None:
    for name in ("lines.yaml", "lines.jsonl"):
        shutil.copy(HERE / name, tmp_path)
    task = tmp_path / "lines.yaml"
    task.write_text(task.read_text().replace("lines.jsonl", str(tmp_path / "lines.jsonl")))
    python = python_with("lm-eval[api]", beside=True)
    given = f"model=bard,base_url={address}/v1/completions,tokenizer={SHAKESPEARE},max_length=1024"
    ran(
        python, "-m", "lm_eval", "run", "--model", "local-completions",
        "--model_args", f"{given},num_concurrent=4", "--batch_size", 2,
        "--include_path", tmp_path, "--tasks", "lines", "--log_samples",
        "--output_path", tmp_path / "out", HF_HOME=str(tmp_path / "hf"),
    )  # fmt: skip
    (log,) = (tmp_path / "out").rglob("samples_lines_*.jsonl")
    samples = [json.loads(line) for line in log.read_text().splitlines()]
    docs = [json.loads(line) for line in (HERE / "lines.jsonl").read_text().splitlines()]
    assert len(samples) == len(docs)
    encode = llm.get_tokenizer().encode
    (end_of_text,) = encode("<|endoftext|>")
    for sample in samples:
        context, continuation = sample["doc"]["context"], sample["doc"]["continuation"]
        # The tool counts white space at the end of a context as the beginning of what follows.
        start = encode(context.rstrip()) or [end_of_text]
        whole = encode(context + continuation) if context else [*start, *encode(continuation)]
        ((found, _),) = sample["filtered_resps"]
        wanted = sum(scores(llm, whole)[len(start) - 1 :])
        assert float(found) == pytest.approx(wanted, abs=1e-6)


def test_guidellm(address: str, tmp_path: Path) -> None:
    python = python_with("guidellm", beside=True)
    out = tmp_path / "out.json"
    ran(
        python, "-m", "guidellm", "run",
        "--backend", f"kind=openai_http,target={address},model=bard",
        "--profile", "kind=concurrent,streams=4",
        "--constraint", "kind=max_requests,count=16",
        "--tokenizer", f"kind=huggingface_auto,model={SHAKESPEARE}",
        "--data", "kind=synthetic_text,prompt_tokens=32,output_tokens=16",
        "--output", f"kind=json,path={out}", "--disable-console-interactive",
    )  # fmt: skip
    (benchmark,) = json.loads(out.read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (16, 0)
    tokens = benchmark["metrics"]["output_token_count"]["successful"]
    assert tokens["mean"] == 16, "it asks for as many with ignore_eos, and counts them by usage"
