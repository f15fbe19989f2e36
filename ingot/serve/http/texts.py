"""Routes about whole texts: embeddings, rerankings, scores and labels."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial

import msgspec

from ingot.serve.http.reply import JSON, Receive, Reply, Scope, Send, replying
from ingot.serve.requests.context import ServerContext
from ingot.serve.texts.answering import (
    Answer,
    classify,
    embed,
    pool,
    rerank,
    score,
    tei_embed,
    tei_embed_all,
    tei_embed_sparse,
    tei_predict,
)
from ingot.serve.texts.requests import (
    ClassifyRequest,
    EmbeddingRequest,
    PoolingRequest,
    RerankRequest,
    ScoreRequest,
    TeiEmbedAllRequest,
    TeiEmbedRequest,
    TeiPredictRequest,
    TextRequest,
)


class Texts:
    """An ASGI application that answers one kind of request about texts."""

    def __init__(self, server: ServerContext, kind: type[TextRequest], answer: Answer) -> None:
        self._server, self._kind, self._answer = server, kind, answer

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        key = scope.get("state", {}).get("key", "")
        return replying(scope, receive, send, partial(self._reply, key))

    async def _reply(self, key: str, body: bytes, reply: Reply) -> None:
        request = await self._server.decode(body, self._kind)
        answer = await self._answer(self._server, request, key, body)
        await reply.whole(msgspec.json.encode(answer), 200, JSON)


TEXT_ROUTES: tuple[tuple[str, type[TextRequest], Answer], ...] = (
    ("/v1/embeddings", EmbeddingRequest, embed),
    ("/v1/rerank", RerankRequest, rerank),
    ("/v2/rerank", RerankRequest, rerank),
    ("/rerank", RerankRequest, rerank),
    ("/score", ScoreRequest, score),
    ("/v1/score", ScoreRequest, score),
    ("/classify", ClassifyRequest, classify),
    ("/pooling", PoolingRequest, pool),
    ("/embed", TeiEmbedRequest, tei_embed),
    ("/embed_all", TeiEmbedAllRequest, tei_embed_all),
    ("/embed_sparse", TeiEmbedAllRequest, tei_embed_sparse),
    ("/predict", TeiPredictRequest, tei_predict),
)
