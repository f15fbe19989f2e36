"""Runs `sentence-transformers` on the models that a server has artifacts of, and its evaluator of
similarity on both; prints what it found as JSON.

python use_sentence_transformers.py http://127.0.0.1:8000 MODEL_DIR WIDE_DIR RERANKER_DIR PAIRS
"""

from __future__ import annotations

import json
import sys
from typing import Any

import httpx
import numpy as np
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator


class Served(SentenceTransformer):
    """What the evaluator asks of a model, answered by the server's."""

    def __init__(self, url: str, model_dir: str) -> None:
        super().__init__(model_dir, device="cpu")
        self.url = url

    def encode(self, sentences: Any, **given: Any) -> Any:
        body = {"model": "vectors", "input": [*sentences]}
        answer = httpx.post(f"{self.url}/v1/embeddings", json=body, timeout=60).json()
        return np.array([each["embedding"] for each in answer["data"]], np.float32)


def main(url: str, model_dir: str, wide_dir: str, reranker_dir: str, given: str) -> None:
    pairs = json.loads(given)
    first, second = zip(*pairs, strict=True)
    theirs, served = SentenceTransformer(model_dir, device="cpu"), Served(url, model_dir)
    wanted = np.linspace(0, 1, len(pairs)).tolist()
    evaluator = EmbeddingSimilarityEvaluator([*first], [*second], wanted)
    found = {
        "vectors": theirs.encode([*first]).tolist(),
        "prompted": theirs.encode([*first], prompt_name="query").tolist(),
        "pooled": SentenceTransformer(wide_dir, device="cpu")
        .encode([*first], prompt_name="query")
        .tolist(),
        "evaluated": [evaluator(theirs), evaluator(served)],
        "pairs": CrossEncoder(reranker_dir, device="cpu").predict(pairs).tolist(),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
