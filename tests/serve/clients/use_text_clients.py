"""Asks a server about whole texts through `langchain-openai` and `cohere`, and prints as JSON what
they read.

python use_text_clients.py http://127.0.0.1:8000 EMBEDDER RERANKER TEXTS_AS_JSON
"""

from __future__ import annotations

import json
import sys

import cohere
from langchain_openai import OpenAIEmbeddings


def main(url: str, embedder: str, reranker: str, given: str) -> None:
    texts = json.loads(given)
    vectors = OpenAIEmbeddings(
        base_url=f"{url}/v1", api_key="none", model=embedder, check_embedding_ctx_length=False,
        chunk_size=2, max_retries=0,
    )  # fmt: skip
    ranks = {}
    for name, client in (("v1", cohere.Client), ("v2", cohere.ClientV2)):
        answer = client(api_key="none", base_url=url).rerank(
            model=reranker, query=texts[0], documents=texts, top_n=2
        )
        ranks[name] = [[each.index, each.relevance_score] for each in answer.results]
    found = {
        "documents": vectors.embed_documents(texts),
        "query": vectors.embed_query(texts[0]),
        "ranks": ranks,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
