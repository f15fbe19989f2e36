"""Requests about whole texts: the clients of several APIs, against the models themselves."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

import ingot
from ingot.artifact.pooler import Pooler
from ingot.runtime.llm import LLM
from ingot.serve.asked import Asked
from ingot.serve.engine import Job, Progress
from ingot.serve.http.app import build_app
from ingot.serve.isolated.client import IsolatedEngine
from ingot.serve.local import LocalEngine
from ingot.serve.openai.fields import FieldError
from ingot.serve.requests.gate import Admitted, OpenGate
from ingot.serve.settings import ModelSettings
from ingot.serve.texts.answering import scored
from ingot.serve.texts.reading import Reading
from ingot.serve.texts.requests import RerankRequest
from tests.support.fake_engine import FakeModels
from tests.support.live_server import serving
from tests.support.text_models import colbert, splade, tagger, wide_embedder

TEXTS = ["To be", "or not to be", "that is the question"]


class SeenGate(OpenGate):
    """Lets everything in, and keeps what was asked."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []

    def enter(self, asked: Asked) -> AbstractAsyncContextManager[Admitted]:
        self.asked.append(asked)
        return super().enter(asked)


@pytest.fixture(scope="module")
def gate() -> SeenGate:
    return SeenGate()


@pytest.fixture(scope="module")
def address(
    embedder_artifact: Path, reranker_artifact: Path, shakespeare_artifact: Path, gate: SeenGate
) -> Iterator[str]:
    models: list[Any] = [
        LLM(embedder_artifact, num_threads=1),
        LLM(reranker_artifact, num_threads=1),
        LLM(shakespeare_artifact, num_threads=1),
        LLM(wide_embedder(), num_threads=1),
        LLM(colbert(), num_threads=1),
        LLM(splade(), num_threads=1),
        LLM(tagger(), num_threads=1),
    ]
    names = ("vectors", "scores", "bard", "wide", "colbert", "splade", "tagger")
    engines = {name: LocalEngine(each) for name, each in zip(names, models, strict=True)}
    with serving(lambda: build_app(FakeModels(**engines), gate=gate)) as address:
        yield address
    for model in models:
        model.close()


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def http(address: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=address, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def embedder(embedder_artifact: Path) -> Iterator[ingot.Embedder]:
    with ingot.Embedder(embedder_artifact) as embedder:
        yield embedder


@pytest.fixture(scope="module")
def reranker(reranker_artifact: Path) -> Iterator[ingot.Classifier]:
    with ingot.Classifier(reranker_artifact) as model:
        yield model


def same(found: Any, wanted: Any) -> bool:
    """The same bits, whichever way they went."""
    return np.array_equal(np.array(found, np.float32), np.array(wanted, np.float32))


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_openai_s_client_gets_the_model_s_vectors(
    client: openai.OpenAI, embedder: ingot.Embedder, encoding: Any
) -> None:
    answer = client.embeddings.create(model="vectors", input=TEXTS, encoding_format=encoding)
    found = [each.embedding for each in answer.data]
    if encoding == "base64":
        found = [np.frombuffer(base64.b64decode(str(each)), "<f4") for each in found]
    assert same(found, embedder.encode(TEXTS))
    assert [each.index for each in answer.data] == [0, 1, 2]
    tokens = sum(len(embedder.tokenizer.encode(text)) for text in TEXTS)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == tokens


def test_a_prompt_has_no_part_in_the_vectors_of_a_model_that_leaves_it_out(
    http: httpx.Client,
) -> None:
    body = {"model": "wide", "inputs": TEXTS, "prompt_name": "query", "normalize": False}
    with ingot.Embedder(wide_embedder()) as model:
        assert same(http.post("/embed", json=body).json(), model.encode(TEXTS, prompt_name="query"))
    body |= {"inputs": "a" * 500, "truncate_prompt_tokens": 2}
    answer = http.post("/embed", json=body)
    assert answer.status_code == 400 and "no token behind its prompt" in answer.text


def test_a_vector_of_each_token(http: httpx.Client) -> None:
    """More texts than a job has, of different lengths."""
    texts = [" ".join(["To be"] * (1 + i % 9)) for i in range(40)]
    for name, path in (("wide", wide_embedder()), ("colbert", colbert())):
        with ingot.Embedder(path) as model:
            wanted = model.encode_tokens(texts)
        found = http.post("/embed_all", json={"model": name, "inputs": texts}).json()
        assert [len(each) for each in found] == [len(each) for each in wanted]
        assert all(same(each, rows) for each, rows in zip(found, wanted, strict=True))
        body = {"model": name, "input": texts, "task": "token_embed"}
        data = http.post("/pooling", json=body).json()["data"]
        assert all(same(each["data"], rows) for each, rows in zip(data, wanted, strict=True))
    assert same(
        http.post("/embed_all", json={"model": name, "inputs": texts[0]}).json()[0], wanted[0]
    )


def test_labels_of_each_token(http: httpx.Client) -> None:
    texts = [" ".join(["To be"] * (1 + i % 9)) for i in range(40)]
    with ingot.Classifier(tagger()) as model:
        wanted = model.classify_tokens(texts)
    for task in ({}, {"task": "token_classify"}):
        answer = http.post("/pooling", json={"model": "tagger", "input": texts, **task}).json()
        assert answer["usage"]["prompt_tokens"] == sum(map(len, wanted))
        data = answer["data"]
        assert all(same(each["data"], rows) for each, rows in zip(data, wanted, strict=True))
    cards = {each["id"]: each for each in http.get("/v1/models").json()["data"]}
    assert cards["tagger"]["capabilities"] == ["token_classify"]


def test_sparse_vectors(http: httpx.Client) -> None:
    body = {"model": "splade", "inputs": TEXTS, "prompt_name": "query"}
    found = http.post("/embed_sparse", json=body).json()
    with ingot.Embedder(splade()) as model:
        wanted = model.encode_sparse(TEXTS, prompt_name="query")
        dense = model.encode(TEXTS)
    for each, vector in zip(found, wanted, strict=True):
        assert [value["index"] for value in each] == vector.indices.tolist()
        assert same([value["value"] for value in each], vector.values)
    data = http.post("/v1/embeddings", json={"model": "splade", "input": TEXTS}).json()["data"]
    assert same([each["embedding"] for each in data], dense)


def test_a_colbert_ranks_token_by_token(http: httpx.Client) -> None:
    body = {"model": "colbert", "query": "To be", "documents": TEXTS}
    results = http.post("/rerank", json=body).json()["results"]
    with LLM(colbert()) as model:
        wanted = model.rerank("To be", TEXTS)
    assert [each["index"] for each in results] == [each.index for each in wanted]
    assert [each["relevance_score"] for each in results] == [
        each.relevance_score for each in wanted
    ]


def test_tokens_are_read_as_they_are(client: openai.OpenAI, embedder: ingot.Embedder) -> None:
    tokens = [[5, 6, 7], [8]]
    answer = client.embeddings.create(model="vectors", input=tokens, encoding_format="float")
    assert same([each.embedding for each in answer.data], embedder.encode(tokens))
    one = client.embeddings.create(model="vectors", input=tokens[0], encoding_format="float")
    assert same(one.data[0].embedding, embedder.encode(tokens[:1])[0])


def test_many_clients_get_their_own_vectors(http: httpx.Client, embedder: ingot.Embedder) -> None:
    texts = [f"{TEXTS[i % 3]} {i}" for i in range(120)]

    def ask(text: str) -> Any:
        body = {"model": "vectors", "input": text}
        return http.post("/v1/embeddings", json=body).json()["data"][0]["embedding"]

    with ThreadPoolExecutor(24) as pool:
        found = [*pool.map(ask, texts)]
    assert same(found, embedder.encode(texts))


def test_a_request_of_many_texts(http: httpx.Client, embedder: ingot.Embedder) -> None:
    texts = [f"{TEXTS[i % 3]} {i}" for i in range(300)]
    answer = http.post("/v1/embeddings", json={"model": "vectors", "input": texts}).json()
    assert same([each["embedding"] for each in answer["data"]], embedder.encode(texts))


class Backwards(LocalEngine):
    """Ends the first job of a request after all others."""

    def __init__(self, model: LLM) -> None:
        super().__init__(model)
        self._others = asyncio.Event()

    async def ask(self, job: Job) -> AsyncGenerator[Progress, None]:
        async for progress in super().ask(job):
            if job.id.endswith("-0"):
                await self._others.wait()
            yield progress
        self._others.set()


def test_vectors_are_in_order_whichever_job_ends_first(
    embedder_artifact: Path, embedder: ingot.Embedder
) -> None:
    texts = [f"{TEXTS[i % 3]} {i}" for i in range(40)]  # two jobs
    with LLM(embedder_artifact, num_threads=1) as model:
        engine = Backwards(model)
        with serving(lambda: build_app(FakeModels(vectors=engine))) as address:
            body = {"model": "vectors", "input": texts}
            answer = httpx.post(f"{address}/v1/embeddings", json=body, timeout=60).json()
    assert same([each["embedding"] for each in answer["data"]], embedder.encode(texts))


def test_a_prompt_by_its_name(http: httpx.Client, embedder: ingot.Embedder) -> None:
    body = {"model": "vectors", "input": "or not", "prompt_name": "query"}
    answer = http.post("/v1/embeddings", json=body).json()
    assert same(answer["data"][0]["embedding"], embedder.encode("or not", prompt_name="query"))


def test_long_texts_are_cut_where_that_is_asked_for(
    http: httpx.Client, embedder: ingot.Embedder
) -> None:
    text = "To be, or not to be, that is the question: " * 20
    body = {"model": "vectors", "input": text, "truncate_prompt_tokens": -1}
    answer = http.post("/v1/embeddings", json=body).json()
    tokens = embedder.tokenizer.encode(text)[:64]
    assert answer["usage"]["prompt_tokens"] == 64
    assert same(answer["data"][0]["embedding"], embedder.encode([tokens])[0])


def test_tei_s_embeddings(http: httpx.Client, embedder: ingot.Embedder) -> None:
    found = http.post("/embed", json={"model": "vectors", "inputs": TEXTS}).json()
    assert same(found, embedder.encode(TEXTS))


def test_pooling_gives_what_the_model_makes(http: httpx.Client, embedder: ingot.Embedder) -> None:
    answer = http.post("/pooling", json={"model": "vectors", "input": TEXTS}).json()
    assert same([each["data"] for each in answer["data"]], embedder.encode(TEXTS))


def test_cohere_s_reranking(http: httpx.Client, reranker: ingot.Classifier) -> None:
    wanted = reranker.rank("To be", TEXTS)
    for path in ("/v1/rerank", "/v2/rerank", "/rerank"):
        body = {
            "model": "scores", "query": "To be", "top_n": 2,
            "documents": [TEXTS[0], {"text": TEXTS[1]}, TEXTS[2]],
            "return_documents": True,
        }  # fmt: skip
        results = http.post(path, json=body).json()["results"]
        assert [each["index"] for each in results] == [each["corpus_id"] for each in wanted[:2]]
        assert same([r["relevance_score"] for r in results], [w["score"] for w in wanted[:2]])
        assert [r["document"]["text"] for r in results] == [TEXTS[r["index"]] for r in results]


def test_tei_s_reranking(http: httpx.Client, reranker: ingot.Classifier) -> None:
    wanted = reranker.rank("To be", TEXTS)
    body = {"model": "scores", "query": "To be", "texts": TEXTS, "return_text": True}
    found = http.post("/rerank", json=body).json()
    assert [(each["index"], each["text"]) for each in found] == [
        (each["corpus_id"], TEXTS[each["corpus_id"]]) for each in wanted
    ]
    assert same([each["score"] for each in found], [each["score"] for each in wanted])


def test_an_embedder_ranks_by_how_alike_vectors_are(
    http: httpx.Client, embedder: ingot.Embedder
) -> None:
    body = {"model": "vectors", "query": "To be", "documents": TEXTS}
    results = http.post("/rerank", json=body).json()["results"]
    vectors = embedder.encode(["To be", *TEXTS])
    wanted = embedder.similarity(vectors[:1], vectors[1:])[0]
    assert [each["index"] for each in results] == np.argsort(-wanted, kind="stable").tolist()
    assert np.allclose([each["relevance_score"] for each in results], np.sort(wanted)[::-1])


def test_a_model_with_several_labels_ranks_nothing() -> None:
    pooler = Pooler(task="classify", pooling=("first",), size=3, max_tokens=9)
    model = Reading(None, "m", "", b"", None, pooler)  # type: ignore[arg-type]
    with pytest.raises(FieldError, match="has 3 labels"):
        asyncio.run(scored(model, [("a", "b")], RerankRequest(query="a")))


def test_scores_of_pairs(http: httpx.Client, reranker: ingot.Classifier) -> None:
    body = {"model": "scores", "text_1": "To be", "text_2": TEXTS}
    answer = http.post("/score", json=body).json()
    wanted = reranker.predict([("To be", text) for text in TEXTS])
    assert same([each["score"] for each in answer["data"]], wanted)


def test_labels(http: httpx.Client, reranker: ingot.Classifier) -> None:
    answer = http.post("/classify", json={"model": "scores", "input": TEXTS}).json()
    wanted = reranker.classify(TEXTS)
    assert same([each["probs"] for each in answer["data"]], wanted)
    assert {each["label"] for each in answer["data"]} == {"LABEL_0"}
    found = http.post("/predict", json={"model": "scores", "inputs": [[TEXTS[0], TEXTS[1]]]}).json()
    assert same(found[0][0]["score"], reranker.predict([(TEXTS[0], TEXTS[1])])[0])


LONG = "To be, or not to be, that is the question: " * 20
REFUSED = [
    ("/v1/embeddings", {"model": "vectors", "input": ""}, "input is an empty text"),
    (
        "/v1/embeddings",
        {"model": "vectors", "input": "", "prompt_name": "query"},
        "input is an empty text",
    ),
    ("/v1/embeddings", {"model": "vectors", "input": ["a", ""]}, "input[1] is an empty text"),
    ("/v1/embeddings", {"model": "vectors", "input": []}, "input"),
    ("/v1/embeddings", {"model": "vectors", "input": [[]]}, "input has no token"),
    ("/v1/embeddings", {"model": "vectors", "input": ["a"] * 2049}, "2049 texts; at most 2048"),
    ("/v1/embeddings", {"model": "vectors", "input": [["a"]]}, "input"),
    ("/v1/embeddings", {"model": "vectors", "input": ["a", [1]]}, "input mixes kinds"),
    ("/v1/embeddings", {"model": "vectors", "input": [2048]}, "input has token 2048"),
    ("/v1/embeddings", {"model": "vectors", "input": LONG}, "and the model takes 64"),
    ("/v1/embeddings", {"model": "vectors", "input": "a" * 10_000_000}, "characters"),
    ("/v1/embeddings", {"model": "vectors", "input": "a", "dimensions": 0}, "dimensions is 0"),
    ("/v1/embeddings", {"model": "vectors", "input": "a", "dimensions": 61}, "dimensions is 61"),
    ("/v1/embeddings", {"model": "vectors", "input": "a", "dimensions": "8"}, "dimensions is '8'"),
    (
        "/v1/embeddings",
        {"model": "vectors", "input": "a", "encoding_format": "x"},
        "encoding_format",
    ),
    ("/v1/embeddings", {"model": "vectors", "input": "a", "prompt_name": "no"}, "prompt_name is"),
    ("/v1/embeddings", {"model": "bard", "input": "a"}, "generates text"),
    ("/v1/embeddings", {"model": "scores", "input": "a"}, "scores texts"),
    ("/v1/embeddings", {"model": "colbert", "input": "a"}, "makes vectors of the tokens"),
    ("/embed_sparse", {"model": "vectors", "inputs": "a"}, "are not sparse"),
    ("/embed_all", {"model": "vectors", "inputs": "a"}, "task is 'token_embed'"),
    ("/embed_all", {"model": "scores", "inputs": "a"}, "scores texts"),
    ("/pooling", {"model": "wide", "input": "a", "task": "classify"}, "task is 'classify'"),
    ("/pooling", {"model": "tagger", "input": "a", "task": "classify"}, "task is 'classify'"),
    ("/pooling", {"model": "scores", "input": "a", "task": "token_classify"}, "token_classify"),
    ("/classify", {"model": "tagger", "input": "a"}, "scores the tokens of texts"),
    ("/rerank", {"model": "tagger", "query": "a", "documents": ["b"]}, "scores the tokens"),
    ("/embed_all", {"model": "tagger", "inputs": "a"}, "scores the tokens of texts"),
    ("/classify", {"model": "vectors", "input": "a"}, "makes vectors of texts"),
    ("/v1/completions", {"model": "vectors", "prompt": "a"}, "generates none"),
    ("/rerank", {"model": "scores", "query": "a", "documents": []}, "documents are missing"),
    ("/rerank", {"model": "scores", "query": "a"}, "documents are missing"),
    ("/rerank", {"model": "scores", "query": "", "documents": ["a"]}, "is an empty text"),
    ("/rerank", {"model": "scores", "query": "a", "documents": [{}]}, "documents[0] has no text"),
    ("/score", {"model": "scores", "text_1": ["a", "b"], "text_2": ["c"]}, "text_1 has 2 texts"),
    ("/predict", {"model": "scores", "inputs": [["a", "b", "c"]]}, "a list of 3 texts"),
]


@pytest.mark.parametrize(
    ("path", "body", "message"), REFUSED, ids=[str(i) for i in range(len(REFUSED))]
)
def test_what_cannot_be_answered_is_a_400(
    http: httpx.Client, path: str, body: Any, message: str
) -> None:
    answer = http.post(path, json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert message in error["message"] and error["param"]


@pytest.mark.parametrize(
    ("model", "task", "path", "body"),
    [
        ("vectors", "embed", "/v1/embeddings", {"input": "a"}),
        ("scores", "classify", "/rerank", {"query": "a", "documents": ["b"]}),
        ("bard", "generate", "/v1/completions", {"prompt": "a", "max_tokens": 1}),
    ],
)
def test_a_request_is_let_in_for_its_task(
    http: httpx.Client, gate: SeenGate, model: str, task: str, path: str, body: Any
) -> None:
    assert http.post(path, json={"model": model, **body}).status_code == 200
    assert (gate.asked[-1].model, gate.asked[-1].task) == (model, task)


def test_half_a_character_is_no_text(http: httpx.Client) -> None:
    body = b'{"model": "vectors", "input": "a\\ud800"}'
    answer = http.post("/v1/embeddings", content=body)
    assert answer.status_code == 400 and "error" in answer.json()


def test_an_engine_process_reads_texts(embedder_artifact: Path, embedder: ingot.Embedder) -> None:
    async def ask() -> tuple[bytes, int]:
        path, settings = str(embedder_artifact), ModelSettings(threads=1)
        engine = await IsolatedEngine.open("m", path, settings)
        try:
            job = Job(id="1", token_ids=[], texts=[[5, 6, 7], [8]], seconds=[0, 0])
            rows = [progress.rows async for progress in engine.ask(job)]
            return rows[-1], (await engine.counters()).num_finished
        finally:
            await engine.close()

    rows, finished = asyncio.run(ask())
    found = np.frombuffer(rows, np.float32).reshape(2, -1)
    found = found / np.linalg.norm(found, axis=1, keepdims=True)
    assert np.allclose(found, embedder.encode([[5, 6, 7], [8]]), atol=1e-6)
    assert finished == 3  # and the golden text before them
