"""Programs of others that ask about whole texts, each in an environment of its own."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ingot
from ingot.runtime.llm import LLM
from ingot.serve.http.app import build_app
from ingot.serve.local import LocalEngine
from tests.serve.clients.venvs import python_with, ran
from tests.support.fake_engine import FakeModels
from tests.support.live_server import serving
from tests.support.text_models import wide_embedder

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
TEXTS = ["To be", "or not to be", "that is the question"]


@pytest.fixture(scope="module")
def embedder(embedder_artifact: Path) -> Iterator[ingot.Embedder]:
    with ingot.Embedder(embedder_artifact) as model:
        yield model


@pytest.fixture(scope="module")
def reranker(reranker_artifact: Path) -> Iterator[ingot.Classifier]:
    with ingot.Classifier(reranker_artifact) as model:
        yield model


@pytest.fixture(scope="module")
def address(embedder_artifact: Path, reranker_artifact: Path) -> Iterator[str]:
    with LLM(embedder_artifact, num_threads=1) as vectors, LLM(reranker_artifact) as scores:
        models = FakeModels(vectors=LocalEngine(vectors), scores=LocalEngine(scores))
        with serving(lambda: build_app(models)) as address:
            yield address


def apart(found: object, wanted: object) -> float:
    """The largest difference of two numbers."""
    return float(np.abs(np.subtract(found, wanted)).max())


def test_langchain_and_cohere(
    address: str, embedder: ingot.Embedder, reranker: ingot.Classifier
) -> None:
    python = python_with("langchain-openai", "cohere")
    given = (address, "vectors", "scores", json.dumps(TEXTS))
    found = json.loads(ran(python, HERE / "use_text_clients.py", *given))
    assert apart(found["documents"], embedder.encode(TEXTS)) < 1e-7
    assert apart(found["query"], embedder.encode(TEXTS[0])) < 1e-7
    wanted = [[each["corpus_id"], each["score"]] for each in reranker.rank(TEXTS[0], TEXTS, 2)]
    assert [*found["ranks"]] == ["v1", "v2"]
    for ranks in found["ranks"].values():
        assert [index for index, _ in ranks] == [index for index, _ in wanted]
        assert apart(ranks, wanted) < 1e-7


def test_sentence_transformers(
    address: str,
    embedder_artifact: Path,
    reranker_artifact: Path,
    embedder: ingot.Embedder,
    reranker: ingot.Classifier,
) -> None:
    """Its vectors, its scores of pairs, and what its evaluator finds of ours."""
    python = python_with("sentence-transformers", beside=True)
    draw, words = random.Random(0), " ".join(TEXTS).split()
    texts = [" ".join(draw.choices(words, k=draw.randint(1, 9))) for _ in range(200)]
    pairs = [*zip(texts[:100], texts[100:], strict=True)]
    artifacts = (embedder_artifact, wide_embedder(), reranker_artifact)
    dirs = [path.with_name("model") for path in artifacts]
    given = (address, *dirs, json.dumps(pairs))
    found = json.loads(ran(python, HERE / "use_sentence_transformers.py", *given))
    assert apart(found["vectors"], embedder.encode(texts[:100])) < 1e-6
    assert apart(found["prompted"], embedder.encode(texts[:100], prompt_name="query")) < 1e-6
    with ingot.Embedder(wide_embedder()) as wide:
        ours = wide.encode(texts[:100], prompt_name="query")
    pooled = np.array(found["pooled"])
    some = np.isfinite(pooled).all(1)  # theirs pool nothing where a text has become one with it
    assert some.sum() > 80
    assert np.linalg.norm(ours[some] - pooled[some]) / np.linalg.norm(ours[some]) < 2e-5
    theirs, served = found["evaluated"]
    assert served == pytest.approx(theirs, abs=1e-6) and len(theirs) > 1
    assert apart(found["pairs"], reranker.predict(pairs)) < 1e-5
