"""`ingot.v1.Texts`: vectors, labels and scores of whole texts, as HTTP gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ingot.serve.grpc.call import current_call
from ingot.serve.grpc.stubs import ingot_v1_pb2 as v1
from ingot.serve.grpc.stubs import ingot_v1_pb2_grpc
from ingot.serve.openai.fields import FieldError
from ingot.serve.requests.context import ServerContext
from ingot.serve.texts.answering import Answer, classify, embed, rerank, score
from ingot.serve.texts.requests import (
    ClassifyRequest,
    EmbeddingRequest,
    RerankRequest,
    ScoreRequest,
    TextRequest,
)


class Texts(ingot_v1_pb2_grpc.TextsServicer):  # type: ignore[misc]  # generated
    """The service over the models of a server."""

    def __init__(self, server: ServerContext) -> None:
        self._server = server

    async def Embed(self, request: Any, context: Any) -> Any:
        fields = {
            **_fields(request, "dimensions", "normalize"),
            "input": _inputs(request.inputs),
            "prompt_name": request.prompt_name or None,
        }
        found = await self._answer(EmbeddingRequest, embed, fields)
        return v1.EmbedResponse(
            model=found.model,
            vectors=[v1.Vector(values=each.embedding) for each in found.data],
            prompt_tokens=found.usage.prompt_tokens,
        )

    async def Classify(self, request: Any, context: Any) -> Any:
        fields = {**_fields(request), "input": _inputs(request.inputs)}
        found = await self._answer(ClassifyRequest, classify, fields)
        return v1.ClassifyResponse(
            model=found.model,
            results=[
                v1.Classified(label=each.label, probabilities=each.probs) for each in found.data
            ],
            prompt_tokens=found.usage.prompt_tokens,
        )

    async def Score(self, request: Any, context: Any) -> Any:
        texts = {"text_1": [*request.text_1], "text_2": [*request.text_2]}
        found = await self._answer(ScoreRequest, score, {**_fields(request), **texts})
        return v1.ScoreResponse(
            model=found.model,
            scores=[each.score for each in found.data],
            prompt_tokens=found.usage.prompt_tokens,
        )

    async def Rerank(self, request: Any, context: Any) -> Any:
        texts = {"query": request.query, "documents": [*request.documents]}
        found = await self._answer(RerankRequest, rerank, {**_fields(request, "top_n"), **texts})
        return v1.RerankResponse(
            model=found.model,
            results=[
                v1.Ranked(index=each.index, relevance_score=each.relevance_score)
                for each in found.results
            ],
            prompt_tokens=found.usage.prompt_tokens,
        )

    async def _answer(self, kind: type[TextRequest], answer: Answer, fields: dict[str, Any]) -> Any:
        """What HTTP would answer to a request with these fields. Raises its errors."""
        body = msgspec.json.encode(fields)
        request = await self._server.decode(body, kind)
        return await answer(self._server, request, current_call().key, body)


def _fields(request: Any, *optional: str) -> dict[str, Any]:
    """The fields that all requests have, and the optional ones that are set."""
    found = {name: getattr(request, name) for name in optional if request.HasField(name)}
    reading = request.reading
    if reading.HasField("truncate_prompt_tokens"):
        found["truncate_prompt_tokens"] = reading.truncate_prompt_tokens
    return found | {"model": request.model or None, "priority": reading.priority}


def _inputs(given: Sequence[Any]) -> list[str | list[int]]:
    """Texts and tokens of texts. Raises FieldError for an input that is neither."""
    found: list[str | list[int]] = []
    for i, each in enumerate(given):
        kind = each.WhichOneof("input")
        if kind is None:
            raise FieldError(
                f"inputs[{i}]", f"inputs[{i}] is empty", hint="Set its text or its token_ids."
            )
        found.append(each.text if kind == "text" else [*each.token_ids.ids])
    return found
