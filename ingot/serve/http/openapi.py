"""`GET /openapi.json`: the routes as OpenAPI 3.1, from the structs that requests become."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ingot.serve.openai.answers import (
    ChatCompletion,
    Completion,
    ErrorAnswer,
    Text,
    Tokens,
)
from ingot.serve.openai.model_cards import ModelCard, ModelList
from ingot.serve.openai.requests import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    SessionRequest,
    TokenizeRequest,
)
from ingot.serve.openai.session_cards import DeletedSession, SessionCard
from ingot.serve.texts.answers import Embeddings, Labels, Poolings, Reranking, Scores
from ingot.serve.texts.requests import (
    ClassifyRequest,
    EmbeddingRequest,
    PoolingRequest,
    RerankRequest,
    ScoreRequest,
    TeiEmbedAllRequest,
    TeiEmbedRequest,
    TeiPredictRequest,
)
from ingot.version import __version__

_EVENTS = "text/event-stream"


class Endpoint(NamedTuple):
    """A route: what it takes and gives, as structs; None: nothing, or any JSON."""

    method: str
    path: str
    summary: str
    takes: type[msgspec.Struct] | None = None
    gives: type[msgspec.Struct] | None = None
    streams: bool = False
    content: str = "application/json"


ENDPOINTS = (
    Endpoint(
        "POST",
        "/v1/chat/completions",
        "Answers a conversation.",
        ChatRequest,
        ChatCompletion,
        streams=True,
    ),
    Endpoint(
        "POST",
        "/v1/completions",
        "Continues one prompt or several.",
        CompletionRequest,
        Completion,
        streams=True,
    ),
    Endpoint("POST", "/v1/embeddings", "Makes vectors of texts.", EmbeddingRequest, Embeddings),
    Endpoint("POST", "/v1/rerank", "Ranks documents by a query.", RerankRequest, Reranking),
    Endpoint("POST", "/v2/rerank", "Does so likewise.", RerankRequest, Reranking),
    Endpoint("POST", "/rerank", "Does so likewise, or as TEI does.", RerankRequest),
    Endpoint("POST", "/score", "Scores pairs of texts.", ScoreRequest, Scores),
    Endpoint("POST", "/v1/score", "Does so likewise.", ScoreRequest, Scores),
    Endpoint("POST", "/classify", "Gives the labels of texts.", ClassifyRequest, Labels),
    Endpoint("POST", "/pooling", "Gives what a model makes of texts.", PoolingRequest, Poolings),
    Endpoint("POST", "/embed", "Makes vectors of texts, as TEI does.", TeiEmbedRequest),
    Endpoint("POST", "/embed_sparse", "Makes sparse ones, as TEI does.", TeiEmbedAllRequest),
    Endpoint("POST", "/embed_all", "Makes one of each token, as TEI does.", TeiEmbedAllRequest),
    Endpoint("POST", "/predict", "Gives the labels of texts, as TEI does.", TeiPredictRequest),
    Endpoint("GET", "/v1/models", "Lists the models by all their names.", None, ModelList),
    Endpoint("GET", "/v1/models/{name}", "Tells of one model.", None, ModelCard),
    Endpoint("POST", "/v1/sessions", "Makes a session.", SessionRequest, SessionCard),
    Endpoint("GET", "/v1/sessions/{id}", "Tells of a session.", None, SessionCard),
    Endpoint("DELETE", "/v1/sessions/{id}", "Deletes a session.", None, DeletedSession),
    Endpoint("POST", "/v1/sessions/{id}/fork", "Makes one with the same.", None, SessionCard),
    Endpoint("POST", "/tokenize", "Gives the tokens of a text.", TokenizeRequest, Tokens),
    Endpoint("POST", "/detokenize", "Gives the text of tokens.", DetokenizeRequest, Text),
    Endpoint("GET", "/health", "Says whether requests can be answered: 200, or 503 if not."),
    Endpoint("GET", "/v2/health/live", "Says that the server runs, as KServe asks."),
    Endpoint("GET", "/v2/health/ready", "Says whether requests can be answered, likewise."),
    Endpoint("GET", "/health/details", "Says what waits and runs, and the limits."),
    Endpoint("GET", "/live", "Says that the server runs; asks for no key."),
    Endpoint("GET", "/version", "Says which version of ingot it is."),
    Endpoint("GET", "/metrics", "Has the metrics for Prometheus.", content="text/plain"),
    Endpoint("GET", "/models", "Lists the models with their states and sizes."),
    Endpoint("POST", "/models/load", "Loads a model; needs a key of the scope admin."),
    Endpoint("POST", "/models/unload", "Unloads a model; needs a key of the scope admin."),
    Endpoint("POST", "/models/reload", "Replaces a model by another artifact; likewise."),
    Endpoint("GET", "/models/events", "Streams what happens to models.", content=_EVENTS),
    Endpoint("GET", "/openapi.json", "Has this description."),
    Endpoint("GET", "/", "Has a page for people.", content="text/html"),
)

_REFERENCE = "#/components/schemas/{name}"
_STATUSES = {
    "400": "The request cannot be served as given; `param` names the field.",
    "401": "The API key is missing or wrong.",
    "403": "The key does not permit this.",
    "404": "There is no such model or session.",
    "409": "The session does something else.",
    "413": "The body is too large.",
    "429": "Too many requests wait; `Retry-After` says when to come again.",
    "500": "A fault of the server; the log has it under the request's id.",
    "503": "The model cannot answer now, or the server is about to end.",
}


def openapi(endpoints: Sequence[Endpoint] = ENDPOINTS) -> dict[str, Any]:
    """The description as JSON."""
    structs = [s for each in endpoints for s in (each.takes, each.gives) if s is not None]
    schemas, components = msgspec.json.schema_components(
        [*structs, ErrorAnswer], ref_template=_REFERENCE
    )
    by_struct = dict(zip([*structs, ErrorAnswer], schemas, strict=True))
    paths: dict[str, Any] = {}
    for each in endpoints:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, by_struct)
    return {
        "openapi": "3.1.0",
        "info": {"title": "ingot", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    }


def _operation(endpoint: Endpoint, schemas: Mapping[Any, Any]) -> dict[str, Any]:
    schema = schemas[endpoint.gives] if endpoint.gives else {}
    content: dict[str, Any] = {endpoint.content: {"schema": schema}}
    if endpoint.streams:
        content[_EVENTS] = {"schema": {"type": "string"}}
    error = {"application/json": {"schema": schemas[ErrorAnswer]}}
    found: dict[str, Any] = {
        "summary": endpoint.summary,
        "responses": {
            "200": {"description": "The answer.", "content": content},
            **{code: {"description": text, "content": error} for code, text in _STATUSES.items()},
        },
    }
    for name in re.findall(r"{(\w+)}", endpoint.path):
        part = {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        found["parameters"] = [part]
    if endpoint.takes:
        body = {"application/json": {"schema": schemas[endpoint.takes]}}
        found["requestBody"] = {"required": True, "content": body}
    return found
