"""`ingot.v1.Texts` gives what the models themselves give."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import ingot
from ingot.runtime.llm import LLM
from ingot.serve.grpc.stubs import ingot_v1_pb2 as v1
from ingot.serve.local import LocalEngine
from tests.serve.grpc.conftest import Client, failure, served
from tests.support.fake_engine import FakeModels

TEXTS = ["To be", "or not to be", "that is the question"]
QUERY = "What is the question?"

Asks = Callable[[Client], Awaitable[Any]]
Ask = Callable[[Asks], Any]


@pytest.fixture
def ask(run: Any, embedder_artifact: Path, reranker_artifact: Path) -> Ask:
    """What a client gets of a server of two models, "vectors" and "scores"."""

    async def work(asks: Asks) -> Any:
        artifacts = {"vectors": embedder_artifact, "scores": reranker_artifact}
        engines = {name: LocalEngine(LLM(at, num_threads=1)) for name, at in artifacts.items()}
        try:
            async with served(FakeModels(**engines)) as client:
                return await asks(client)
        finally:
            for engine in engines.values():
                await engine.close()

    return lambda asks: run(work(asks))


def inputs(*given: str | list[int]) -> list[Any]:
    return [
        v1.TextInput(text=each)
        if isinstance(each, str)
        else v1.TextInput(token_ids=v1.TokenIds(ids=each))
        for each in given
    ]


@pytest.mark.parametrize("given", [TEXTS, [[5, 6, 7], [8]]], ids=["texts", "tokens"])
def test_vectors(ask: Ask, embedder_artifact: Path, given: list[Any]) -> None:
    request = v1.EmbedRequest(model="vectors", inputs=inputs(*given))
    found = ask(lambda client: client.texts.Embed(request))
    with ingot.Embedder(embedder_artifact) as model:
        tokens = [t if isinstance(t, list) else model.tokenizer.encode(t) for t in given]
        wanted = model.encode(given)
    assert np.array_equal(np.float32([[*each.values] for each in found.vectors]), wanted)
    assert (found.model, found.prompt_tokens) == ("vectors", sum(map(len, tokens)))


def test_labels_scores_and_ranks(ask: Ask, reranker_artifact: Path) -> None:
    async def asks(client: Client) -> Any:
        texts = client.texts
        return (
            await texts.Classify(v1.ClassifyRequest(model="scores", inputs=inputs(*TEXTS))),
            await texts.Score(v1.ScoreRequest(model="scores", text_1=[QUERY], text_2=TEXTS)),
            await texts.Rerank(
                v1.RerankRequest(model="scores", query=QUERY, documents=TEXTS, top_n=2)
            ),
        )

    labels, scores, ranks = ask(asks)
    with ingot.Classifier(reranker_artifact) as model:
        wanted = model.classify(TEXTS)
        pairs = model.predict([(QUERY, text) for text in TEXTS])
        best = model.rank(QUERY, TEXTS, top_k=2)
        names = model.pooler.labels
    found = np.float32([[*each.probabilities] for each in labels.results])
    assert np.array_equal(found, wanted)
    assert [each.label for each in labels.results] == [names[int(row.argmax())] for row in wanted]
    assert np.array_equal(np.float32(scores.scores), pairs)
    assert [(each.index, each.relevance_score) for each in ranks.results] == [
        (each["corpus_id"], each["score"]) for each in best
    ]


@pytest.mark.parametrize(
    "fields, code, text",
    [
        ({"model": "scores", "inputs": inputs("a")}, "unsupported_task", "scores texts"),
        ({"model": "vectors"}, "invalid_value", "input"),
        ({"model": "vectors", "inputs": [v1.TextInput()]}, "invalid_value", "inputs[0] is empty"),
        ({"model": "vectors", "inputs": inputs("")}, "invalid_value", "empty text"),
        ({"model": "vectors", "inputs": inputs("a", [5])}, "invalid_value", "mixes kinds"),
        ({"model": "vectors", "inputs": inputs("a"), "dimensions": -1}, "invalid_value", "-1"),
        ({"model": "none", "inputs": inputs("a")}, "model_not_found", "none"),
    ],
)
def test_refusals_are_those_of_http(ask: Ask, fields: dict[str, Any], code: str, text: str) -> None:
    request = v1.EmbedRequest(**fields)
    status, told, trailing = ask(lambda client: failure(client.texts.Embed(request)))
    wanted = "NOT_FOUND" if code == "model_not_found" else "INVALID_ARGUMENT"
    assert status is grpc.StatusCode[wanted]
    assert text in told and trailing["ingot-code"] == code


def test_texts_are_cut_where_that_is_asked_for(ask: Ask, embedder_artifact: Path) -> None:
    long = "question " * 500

    async def asks(client: Client) -> Any:
        def request(**reading: int) -> Any:
            return v1.EmbedRequest(
                model="vectors", inputs=inputs(long), reading=v1.Reading(**reading)
            )

        refused = await failure(client.texts.Embed(request()))
        return refused, await client.texts.Embed(request(truncate_prompt_tokens=-1))

    (status, told, trailing), found = ask(asks)
    assert status is grpc.StatusCode.INVALID_ARGUMENT and "the model takes" in told
    assert trailing["ingot-code"] == "context_length_exceeded"
    with ingot.Embedder(embedder_artifact, truncate=True) as model:
        assert np.array_equal(np.float32([*found.vectors[0].values]), model.encode(long))
