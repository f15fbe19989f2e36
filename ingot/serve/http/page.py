"""`GET /` and `GET /openapi.json`: what people and programs read first."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ingot.serve.http.openapi import openapi
from ingot.serve.requests.context import ServerContext

# The page has all that it needs, and may ask this server alone.
_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; script-src "
    "'unsafe-inline'; connect-src 'self'; img-src data:; form-action 'none'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


async def page(server: ServerContext, request: Request) -> Response:
    """The page."""
    return Response(_page(), media_type="text/html", headers=_HEADERS)


async def description(server: ServerContext, request: Request) -> Response:
    """The routes as OpenAPI."""
    return Response(_description(), media_type="application/json")


@cache
def _page() -> bytes:
    return (files(__package__) / "page.html").read_bytes()


@cache
def _description() -> bytes:
    return msgspec.json.encode(openapi())
