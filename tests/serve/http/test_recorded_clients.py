"""Requests as other tools sent them, byte for byte, and what those tools read from the answers.

`recorded/lm_eval.http` was sent by lm-evaluation-harness 0.4.13, `--model local-completions`.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ingot.runtime.llm import LLM
from ingot.runtime.params import SamplingParams
from ingot.serve.http.app import build_app
from ingot.serve.local import LocalEngine
from tests.support.fake_engine import FakeModels
from tests.support.live_server import serving

pytestmark = pytest.mark.thorough

RECORDED = Path(__file__).with_name("recorded") / "lm_eval.http"


@pytest.fixture(scope="module")
def llm(shakespeare_artifact: Path) -> Iterator[LLM]:
    with LLM(shakespeare_artifact, num_threads=1) as llm:
        yield llm


@pytest.fixture(scope="module")
def exchanges(llm: LLM) -> list[tuple[Any, Any]]:
    """What each request asks, and the answer to it."""
    requests = RECORDED.read_bytes().split(b"\n%%\n")
    with serving(lambda: build_app(FakeModels(bard=LocalEngine(llm)))) as address:
        return [(json.loads(body_of(each)), answer(address, each)) for each in requests]


def body_of(message: bytes) -> bytes:
    return message.partition(b"\r\n\r\n")[2]


def answer(address: str, request: bytes) -> Any:
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(request)
        with connection.makefile("rb") as stream:
            status = stream.readline()
            assert status.startswith(b"HTTP/1.1 200 "), status
            headers = dict(
                line.rstrip().lower().split(b": ", 1) for line in iter(stream.readline, b"\r\n")
            )
            return json.loads(stream.read(int(headers[b"content-length"])))


def test_scores_of_prompts_are_those_of_llm(llm, exchanges):
    scored = [(asked, found) for asked, found in exchanges if asked.get("echo")]
    assert len(scored) == 2
    for asked, found in scored:
        (choice,), (prompt,) = found["choices"], asked["prompt"]
        logprobs = choice["logprobs"]
        params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1)
        (output,) = llm.generate([{"prompt_token_ids": prompt}], params)
        # The tool leaves out the token that was made, the last one, and reads from the second on.
        read = logprobs["token_logprobs"][1:-1]
        expected = zip(prompt[1:], output.prompt_logprobs[1:], strict=True)
        assert read == [scores[token].logprob for token, scores in expected]
        # Whether a text is the likeliest one: its score is the best of its place.
        best = [max(top.values()) for top in logprobs["top_logprobs"][1:-1]]
        assert all(score <= top for score, top in zip(read, best, strict=True))
        ranks = (
            scores[token].rank
            for token, scores in zip(prompt[1:], output.prompt_logprobs[1:], strict=True)
        )
        is_best = [score == top for score, top in zip(read, best, strict=True)]
        assert is_best == [rank == 1 for rank in ranks]


def test_a_generated_text_is_that_of_llm(llm, exchanges):
    ((asked, found),) = [each for each in exchanges if "echo" not in each[0]]
    params = SamplingParams(
        temperature=0, max_tokens=asked["max_tokens"], stop=asked["stop"], seed=asked["seed"],
        top_p=0.95,
    )  # fmt: skip
    (output,) = llm.generate([{"prompt_token_ids": asked["prompt"][0]}], params)
    (choice,) = found["choices"]
    assert choice["index"] == 0 and choice["text"] == output.outputs[0].text
