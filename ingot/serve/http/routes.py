"""The routes that answer at once: models, tokens, and whether the server can be used."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ingot.runtime.tokenizer import Tokenizer
from ingot.serve.engine import ModelFacts
from ingot.serve.http.errors import UnknownModel, noted_refusal
from ingot.serve.http.page import description, page
from ingot.serve.http.site import Site, off_loop
from ingot.serve.openai.answers import Text, Tokens
from ingot.serve.openai.conversation import encoded, rendered
from ingot.serve.openai.fields import FieldError
from ingot.serve.openai.model_cards import ModelCard, ModelList
from ingot.serve.openai.params import Terms
from ingot.serve.openai.prompts import MAX_CHARS_PER_TOKEN
from ingot.serve.openai.requests import DetokenizeRequest, TokenizeRequest
from ingot.serve.openai.token_texts import TokenTexts
from ingot.serve.refusal import Refusal
from ingot.version import __version__

MAX_TOKENIZED_CHARS = 1 << 20

Handler = Callable[[Site, Request], Awaitable[Response]]


def json(value: Any, status: int = 200) -> Response:
    """An answer of JSON."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def refused(refusal: Refusal) -> Response:
    """An answer that is an error."""
    response = Response(refusal.body(), refusal.status)
    for name, value in refusal.headers():
        response.headers.append(name.decode(), value.decode())
    return response


def route(site: Site, method: str, path: str, handler: Handler) -> Route:
    """A route whose handler gets the site as well."""

    async def handle(request: Request) -> Response:
        try:
            return await handler(site, request)
        except Exception as error:
            return refused(noted_refusal(error, request.scope))

    return Route(path, handle, methods=[method])


def routes(site: Site) -> list[Route]:
    """All of them."""
    return [
        route(site, "GET", "/", page),
        route(site, "GET", "/openapi.json", description),
        route(site, "GET", "/live", _live),
        route(site, "GET", "/health", _health),
        route(site, "GET", "/version", _version),
        route(site, "GET", "/v1/models", _list_models),
        route(site, "GET", "/v1/models/{name:path}", _one_model),
        route(site, "POST", "/tokenize", _tokenize),
        route(site, "POST", "/detokenize", _detokenize),
    ]


async def _live(site: Site, request: Request) -> Response:
    return json({"status": "ok"})


async def _health(site: Site, request: Request) -> Response:
    """Whether requests can be answered: those for any model, or those for the `model` asked for."""
    states = {status.name: str(status.state) for status in site.models.status()}
    missing, ready = _missing(site), is_ready(site)
    if name := request.query_params.get("model"):
        name = site.models.name_of(name)
        states, ready = {name: states[name]}, name not in missing
    word = "unready" if not ready else "degraded" if missing & states.keys() else "ok"
    return json({"status": word, "models": states}, 200 if ready else 503)


def is_ready(site: Site) -> bool:
    """Whether requests can be answered, now or as soon as a model is loaded for them.

    A server is ready when it has tried to load what it starts with, and while any model can serve:
    one that has failed must not keep requests from the others. A model that is loaded because
    somebody asked for it leaves the server ready: requests wait.
    """
    names = {status.name for status in site.models.status()}
    return not site.starting and (not names or names != _missing(site))


def _missing(site: Site) -> set[str]:
    """Models that are loaded at the start still, that have failed, or whose engine has died and is
    being started again."""
    return {
        status.name
        for status in site.models.status()
        if status.name in site.starting
        or status.state == "failed"
        or (status.state == "loading" and status.num_restarts and status.facts is not None)
    }


async def _version(site: Site, request: Request) -> Response:
    return json({"version": __version__})


async def _list_models(site: Site, request: Request) -> Response:
    return json(ModelList(data=_cards(site)))


async def _one_model(site: Site, request: Request) -> Response:
    name = request.path_params["name"]
    cards = _cards(site)
    for card in cards:
        if card.id == name:
            return json(card)
    raise unknown_model(site, name)


def unknown_model(site: Site, name: str) -> UnknownModel:
    """The error for a name that no model has."""
    known = ", ".join(card.id for card in _cards(site))
    return UnknownModel(
        f"the model {name[:80]!r} does not exist", hint=f"Served here: {known}.", param="model"
    )


def _cards(site: Site) -> list[ModelCard]:
    return [
        ModelCard(
            id=name,
            created=status.facts.created if status.facts else 0,
            root=status.name,
            max_model_len=status.facts.max_model_len if status.facts else None,
        )
        for status in site.models.status()
        for name in (status.name, *status.aliases)
    ]


async def _tokenize(site: Site, request: Request) -> Response:
    asked = await site.decode(await request.body(), TokenizeRequest)
    name = site.named(asked.model)
    async with site.lease(name) as engine:
        work = partial(_tokens, asked, engine.tokenizer, engine.facts, site.terms_of(name))
        async with site.tokenizing.take():
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


async def _detokenize(site: Site, request: Request) -> Response:
    asked = await site.decode(await request.body(), DetokenizeRequest)
    async with site.lease(site.named(asked.model)) as engine:
        size, tokenizer = engine.facts.vocab_size, engine.tokenizer
        if (largest := max(asked.tokens, default=0)) >= size:
            raise FieldError("tokens", f"tokens has {largest}; the vocabulary has {size} tokens")
        skip = bool(asked.skip_special_tokens)
        text = await off_loop(partial(tokenizer.decode, asked.tokens, skip))
    return json(Text(prompt=text))
