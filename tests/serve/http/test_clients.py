"""The official client against a server with the bundled model, held against `LLM`."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from ingot.runtime.llm import LLM
from ingot.runtime.params import SamplingParams
from ingot.serve.http.app import build_app
from ingot.serve.local import LocalEngine
from tests.runtime.gate import halted
from tests.support.core import core
from tests.support.fake_engine import FakeModels
from tests.support.live_server import serving

PROMPTS = ["First Citizen:\n", "ROMEO:\nBut soft", "KING RICHARD III:\n", "To be, or not"]
MESSAGES: list[Any] = [{"role": "user", "content": "Who is there?"}]


@pytest.fixture(scope="module")
def llm(shakespeare_artifact: Path) -> Iterator[LLM]:
    with LLM(shakespeare_artifact, num_threads=1) as llm:
        yield llm


@pytest.fixture(scope="module")
def address(llm: LLM) -> Iterator[str]:
    with serving(lambda: build_app(FakeModels(bard=LocalEngine(llm)))) as address:
        yield address


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        yield client


def expected(llm: LLM, prompt: Any, **fields: Any) -> Any:
    (output,) = llm.generate([prompt], SamplingParams(**DEFAULTS, **fields))
    return output


# What the bundled model's generation_config.json asks for, and the server therefore.
DEFAULTS = {"temperature": 0.8, "top_p": 0.95}


def test_models_are_listed(client: openai.OpenAI) -> None:
    (card,) = client.models.list().data
    assert client.models.retrieve("bard") == card
    assert (card.id, card.object, card.owned_by) == ("bard", "model", "ingot")
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("nobody")
    assert caught.value.code == "model_not_found" and caught.value.param == "model"


def test_a_completion_has_the_tokens_of_llm(client: openai.OpenAI, llm: LLM) -> None:
    answer = client.completions.create(
        model="bard",
        prompt=PROMPTS[0],
        seed=7,
        max_tokens=12,
        extra_body={"return_token_ids": True},
    )
    output = expected(llm, PROMPTS[0], seed=7, max_tokens=12)
    (choice,) = answer.choices
    assert choice.model_extra is not None
    assert choice.text == output.outputs[0].text
    assert choice.model_extra["token_ids"] == output.outputs[0].token_ids
    assert choice.model_extra["prompt_token_ids"] == output.prompt_token_ids
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(output.prompt_token_ids)
    assert (choice.finish_reason, answer.usage.completion_tokens) == ("length", 12)


@pytest.mark.parametrize("count", core(8, further=[64]))
def test_tokens_are_the_same_in_company(count: int, client: openai.OpenAI, llm: LLM) -> None:
    lengths = [4 + seed % 13 for seed in range(count)]

    def ask(seed: int) -> str:
        prompt = PROMPTS[seed % len(PROMPTS)]
        stream = client.completions.create(
            model="bard", prompt=prompt, seed=seed, max_tokens=lengths[seed], stream=True
        )
        return "".join(chunk.choices[0].text for chunk in stream)

    with ThreadPoolExecutor(count) as pool:
        found = list(pool.map(ask, range(count)))
    for seed, text in enumerate(found):
        prompt = PROMPTS[seed % len(PROMPTS)]
        output = expected(llm, prompt, seed=seed, max_tokens=lengths[seed])
        assert text == output.outputs[0].text


def test_a_chat_streamed_and_whole(client: openai.OpenAI, llm: LLM) -> None:
    fields: dict[str, Any] = {"model": "bard", "messages": MESSAGES, "seed": 3, "max_tokens": 12}
    whole = client.chat.completions.create(**fields)
    chunks = list(
        client.chat.completions.create(
            **fields, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    prompt = llm.chat_prompt(MESSAGES)
    assert text == whole.choices[0].message.content
    assert text == expected(llm, prompt, seed=3, max_tokens=12).outputs[0].text
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage == whole.usage and not chunks[-1].choices
    assert len({chunk.id for chunk in chunks}) == 1
    assert whole.system_fingerprint == chunks[0].system_fingerprint


def test_several_choices_differ(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": "bard", "prompt": PROMPTS[1], "n": 3, "seed": 5}
    whole = client.completions.create(**fields, max_tokens=8)
    texts = ["", "", ""]
    for chunk in client.completions.create(**fields, max_tokens=8, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert [choice.text for choice in whole.choices] == texts
    assert len(set(texts)) == 3


def test_log_probabilities_are_those_of_llm(client: openai.OpenAI, llm: LLM) -> None:
    answer = client.chat.completions.create(
        model="bard", messages=MESSAGES, temperature=0, max_tokens=5, logprobs=True, top_logprobs=3
    )
    params = SamplingParams(temperature=0, max_tokens=5, logprobs=3)
    (output,) = llm.generate([llm.chat_prompt(MESSAGES)], params)
    found = answer.choices[0].logprobs
    expected_scores = output.outputs[0].logprobs
    assert found is not None and found.content is not None and expected_scores is not None
    for token, each, scores in zip(
        output.outputs[0].token_ids, found.content, expected_scores, strict=True
    ):
        assert each.logprob == scores[token].logprob
        ranked = sorted(scores.values(), key=lambda score: score.rank)[:3]
        assert [top.logprob for top in each.top_logprobs] == [score.logprob for score in ranked]
    text = b"".join(bytes(each.bytes or []) for each in found.content).decode()
    assert text == answer.choices[0].message.content


def test_echoed_prompts_are_scored_as_by_llm(client: openai.OpenAI, llm: LLM) -> None:
    prompts = [llm.get_tokenizer().encode(prompt) for prompt in PROMPTS[:2]]
    answer = client.completions.create(
        model="bard", prompt=prompts, echo=True, logprobs=1, max_tokens=1, temperature=0
    )
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1))
    for choice, output, prompt in zip(answer.choices, outputs, prompts, strict=True):
        assert choice.logprobs is not None and choice.logprobs.token_logprobs is not None
        assert output.prompt_logprobs is not None
        scores = [
            each[token].logprob
            for token, each in zip(prompt[1:], output.prompt_logprobs[1:], strict=True)
            if each is not None
        ]
        assert choice.logprobs.token_logprobs[1:-1] == scores
        assert choice.text.startswith(llm.get_tokenizer().decode(prompt))


def test_a_stop_string_ends_an_answer(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="bard", prompt=PROMPTS[0], temperature=0, max_tokens=40, stop=[",", "\n"]
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "stop" and choice.model_extra is not None
    assert choice.model_extra["stop_reason"] in (",", "\n")
    assert "," not in choice.text and "\n" not in choice.text


def test_a_refused_request_is_a_typed_error(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="bard", prompt="x", max_tokens=-1)
    assert (caught.value.param, caught.value.code) == ("max_tokens", "invalid_value")
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="bard", prompt=[5] * 2000)
    assert caught.value.code == "context_length_exceeded"


def test_a_closed_stream_frees_its_pages(client: openai.OpenAI, llm: LLM) -> None:
    before = llm.counters().num_aborted
    with halted(llm, steps=3) as halt:
        stream = client.completions.create(
            model="bard",
            prompt=PROMPTS[0],
            max_tokens=900,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        next(iter(stream))
        halt.reached.wait()
        stream.close()
        halt.until_posted()
    after = llm.counters()
    assert (after.num_running, after.num_waiting) == (0, 0)
    assert after.num_aborted == before + 1


def test_a_client_that_leaves_without_a_stream_frees_its_pages(address: str, llm: LLM) -> None:
    before = llm.counters()
    body = json.dumps({"prompt": PROMPTS[0], "max_tokens": 900, "ignore_eos": True}).encode()
    host, port = address.removeprefix("http://").split(":")
    with (
        halted(llm, steps=3) as halt,
        socket.create_connection((host, int(port))) as connection,
    ):
        head = f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(body)}\r\n"
        connection.sendall(head.encode() + b"\r\n" + body)
        halt.reached.wait()
        connection.close()
        halt.until_posted()
    after = llm.counters()
    assert after.num_aborted == before.num_aborted + 1
    assert (after.num_running, after.num_waiting) == (0, 0)
    assert after.num_generated_tokens < before.num_generated_tokens + 900


def test_asynchronous_clients_at_once(address: str, llm: LLM) -> None:
    async def run() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none") as client:

            async def ask(seed: int) -> str:
                answer = await client.chat.completions.create(
                    model="bard", messages=MESSAGES, seed=seed, max_tokens=6
                )
                return answer.choices[0].message.content or ""

            return await asyncio.gather(*(ask(seed) for seed in range(6)))

    prompt = llm.chat_prompt(MESSAGES)
    assert asyncio.run(run()) == [
        expected(llm, prompt, seed=seed, max_tokens=6).outputs[0].text for seed in range(6)
    ]


def test_the_page_and_the_description(address: str) -> None:
    with httpx.Client(base_url=address) as http:
        page = http.get("/")
        assert page.headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert "http://" not in page.text and "https://" not in page.text
        assert http.get("/openapi.json").json()["openapi"] == "3.1.0"
        assert http.request("HEAD", "/live").status_code == 200
