"""`build_app`: the server's routes as an ASGI application."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from ingot.serve.edge.record import plain_path
from ingot.serve.http.generate import Generate
from ingot.serve.http.model_routes import model_routes
from ingot.serve.http.reply import Receive, Scope, Send
from ingot.serve.http.routes import refused, routes
from ingot.serve.http.session_routes import session_routes
from ingot.serve.http.texts import TEXT_ROUTES, Texts
from ingot.serve.openai.requests import ChatRequest, CompletionRequest
from ingot.serve.refusal import wrong_method
from ingot.serve.requests.context import HttpSettings, ServerContext
from ingot.serve.requests.errors import UnknownRoute
from ingot.serve.requests.gate import Gate, OpenGate
from ingot.serve.requests.models import Models

Beside = Callable[[], AbstractAsyncContextManager[None]]


def build_app(
    models: Models,
    settings: HttpSettings | None = None,
    gate: Gate | None = None,
    beside: Beside | None = None,
) -> Starlette:
    """The routes over a registry of models, without keys, limits or metrics.

    `gate` lets requests for text in, all of them by default; what `beside` gives is entered while
    the application runs.
    """
    server = ServerContext(
        models=models, settings=settings or HttpSettings(), gate=gate or OpenGate()
    )
    return app_of(server, beside)


def app_of(server: ServerContext, beside: Beside | None = None) -> Starlette:
    """The routes over what a server holds."""
    return _App(
        lifespan=None if beside is None else lambda _: beside(),
        routes=[
            Route("/v1/completions", Generate(server, CompletionRequest), methods=["POST"]),
            Route("/v1/chat/completions", Generate(server, ChatRequest), methods=["POST"]),
            *(
                Route(path, Texts(server, kind, answer), methods=["POST"])
                for path, kind, answer in TEXT_ROUTES
            ),
            *routes(server),
            *model_routes(server),
            *session_routes(server),
        ],
        exception_handlers={HTTPException: _on_http},
    )


class _App(Starlette):
    """Hands requests for text on at once: each token of a stream would pass through the layers of
    Starlette, which do nothing to it."""

    def __init__(self, *, routes: list[Route], **options: Any) -> None:
        super().__init__(routes=routes, **options)
        self._generate = {each.path: each.app for each in routes if isinstance(each.app, Generate)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["path"] = plain_path(scope.get("path", ""))
        direct = self._generate.get(scope["path"])
        if direct is not None and scope["method"] == "POST":
            await direct(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


async def _on_http(request: Request, error: Exception) -> Response:
    """Answers what Starlette refuses: unknown routes, and wrong methods."""
    assert isinstance(error, HTTPException), "registered for no other"
    path = request.url.path[:200]
    if error.status_code == 405:
        return refused(wrong_method(path, request.method, ", ".join(_methods(request))))
    return refused(UnknownRoute(f"there is no {path}", hint="GET /openapi.json lists all."))


def _methods(request: Request) -> list[str]:
    """What a path takes, of all its routes. Starlette names the methods of the first one alone."""
    routes: list[Route] = request.app.routes
    matching = (each for each in routes if each.matches(request.scope)[0] is not Match.NONE)
    return sorted({method for each in matching for method in each.methods or ()})
