"""The routes that answer at once: models, tokens, and whether the server can be used."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ingot.errors import UnknownModelError
from ingot.runtime.tokenizer import Tokenizer
from ingot.serve.engine import ModelFacts
from ingot.serve.http.page import description, page
from ingot.serve.openai.answers import Text, Tokens
from ingot.serve.openai.conversation import encoded, rendered
from ingot.serve.openai.fields import FieldError
from ingot.serve.openai.model_cards import ModelCard, ModelList
from ingot.serve.openai.params import Terms
from ingot.serve.openai.prompts import MAX_CHARS_PER_TOKEN, MAX_TOKENIZED_CHARS
from ingot.serve.openai.requests import DetokenizeRequest, TokenizeRequest
from ingot.serve.openai.token_texts import TokenTexts
from ingot.serve.refusal import BadKey, Refusal
from ingot.serve.requests.context import ServerContext, off_loop
from ingot.serve.requests.errors import noted_refusal
from ingot.version import __version__

Handler = Callable[[ServerContext, Request], Awaitable[Response]]


def json(value: Any, status: int = 200) -> Response:
    """An answer of JSON."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def refused(refusal: Refusal) -> Response:
    """An answer that is an error."""
    response = Response(refusal.body(), refusal.status)
    for name, value in refusal.headers():
        response.headers.append(name.decode(), value.decode())
    return response


def route(server: ServerContext, method: str, path: str, handler: Handler) -> Route:
    """A route whose handler gets the server as well."""

    async def handle(request: Request) -> Response:
        try:
            return await handler(server, request)
        except Exception as error:
            return refused(noted_refusal(error, request.scope))

    return Route(path, handle, methods=[method])


def routes(server: ServerContext) -> list[Route]:
    """Routes of a server that answer at once."""
    return [
        route(server, "GET", "/", page),
        route(server, "GET", "/openapi.json", description),
        route(server, "GET", "/live", _live),
        route(server, "GET", "/health", _health),
        route(server, "GET", "/v2/health/live", _oip_live),
        route(server, "GET", "/v2/health/ready", _oip_ready),
        route(server, "GET", "/version", _version),
        route(server, "GET", "/v1/models", _list_models),
        route(server, "GET", "/v1/models/{name:path}", _one_model),
        route(server, "POST", "/tokenize", _tokenize),
        route(server, "POST", "/detokenize", _detokenize),
    ]


async def _live(server: ServerContext, request: Request) -> Response:
    return json({"status": "ok"})


async def _health(server: ServerContext, request: Request) -> Response:
    """Readiness: 200 if requests for any model, or for the `model` asked for, can be answered."""
    states = {status.name: str(status.state) for status in server.models.status()}
    missing, ready = server.missing, server.is_ready
    anonymous = request.scope.get("state", {}).get("anonymous", False)
    if name := request.query_params.get("model"):
        if anonymous:
            raise BadKey(
                "the models of this server are named to those with a key",
                hint="Send it as `Authorization: Bearer KEY`, or ask for /health alone.",
            )
        name = server.models.name_of(name)
        states, ready = {name: states[name]}, name not in missing
    word = "unready" if not ready else "degraded" if missing & states.keys() else "ok"
    told = {"status": word} if anonymous else {"status": word, "models": states}
    return json(told, 200 if ready else 503)


async def _oip_live(server: ServerContext, request: Request) -> Response:
    return json({"live": True})


async def _oip_ready(server: ServerContext, request: Request) -> Response:
    return json({"ready": server.is_ready}, 200 if server.is_ready else 503)


async def _version(server: ServerContext, request: Request) -> Response:
    return json({"version": __version__})


async def _list_models(server: ServerContext, request: Request) -> Response:
    return json(ModelList(data=_cards(server)))


async def _one_model(server: ServerContext, request: Request) -> Response:
    name = request.path_params["name"]
    cards = _cards(server)
    for card in cards:
        if card.id == name:
            return json(card)
    raise unknown_model(server, name)


def unknown_model(server: ServerContext, name: str) -> UnknownModelError:
    """The error for a name that no model has."""
    known = ", ".join(card.id for card in _cards(server))
    return UnknownModelError(
        f"the model {name[:80]!r} does not exist", hint=f"Served here: {known}."
    )


def capabilities(facts: ModelFacts) -> list[str]:
    """What a model can be asked for."""
    reads = [facts.pooler.task] if facts.pooler else []
    return [*(["completion"] if facts.generates else []), *reads]


def _cards(server: ServerContext) -> list[ModelCard]:
    return [
        ModelCard(
            id=name,
            created=status.created,
            root=status.name,
            max_model_len=status.max_model_len,
            capabilities=UNSET if status.facts is None else capabilities(status.facts),
        )
        for status in server.models.status()
        for name in (status.name, *status.aliases)
    ]


async def _tokenize(server: ServerContext, request: Request) -> Response:
    asked = await server.decode(await request.body(), TokenizeRequest)
    name = server.named(asked.model)
    async with server.lease(name) as engine:
        work = partial(_tokens, asked, engine.tokenizer, engine.facts, server.terms_of(name))
        async with server.tokenizing.take():
            return await off_loop(work)


def _tokens(
    asked: TokenizeRequest, tokenizer: Tokenizer, facts: ModelFacts, terms: Terms
) -> Response:
    if (asked.prompt is None) == (asked.messages is None):
        raise FieldError("prompt", "give a prompt or messages, one of them")
    if asked.prompt is None:
        text = rendered(asked, tokenizer, terms)
        _refuse_large(text.plain, facts, "messages")
        ids = encoded(asked, text, tokenizer)
    else:
        _refuse_large(asked.prompt, facts, "prompt")
        ids = tokenizer.encode(asked.prompt, asked.add_special_tokens is not False)
    texts = TokenTexts(tokenizer)
    tokens = Tokens(
        count=len(ids),
        max_model_len=facts.max_model_len,
        tokens=ids,
        token_strs=[texts.text(i) for i in ids] if asked.return_token_strs else None,
    )
    return json(tokens)


def _refuse_large(text: str, facts: ModelFacts, param: str) -> None:
    """Texts may be longer than a prompt: people count tokens to cut them. Raises FieldError."""
    most = max(MAX_TOKENIZED_CHARS, facts.max_model_len * MAX_CHARS_PER_TOKEN)
    if len(text) > most:
        raise FieldError(param, f"{param} has {len(text)} characters; at most {most} are tokenised")


async def _detokenize(server: ServerContext, request: Request) -> Response:
    asked = await server.decode(await request.body(), DetokenizeRequest)
    async with server.lease(server.named(asked.model)) as engine:
        size, tokenizer = engine.facts.vocab_size, engine.tokenizer
        if (largest := max(asked.tokens, default=0)) >= size:
            raise FieldError("tokens", f"tokens has {largest}; the vocabulary has {size} tokens")
        skip = bool(asked.skip_special_tokens)
        text = await off_loop(partial(tokenizer.decode, asked.tokens, skip))
    return json(Text(prompt=text))
