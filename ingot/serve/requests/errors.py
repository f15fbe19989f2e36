"""Which answer each error becomes. Texts of errors that are not ours stay in the log."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

from ingot.errors import (
    ArtifactError,
    DeviceError,
    DrainingError,
    EngineDeadError,
    GrammarError,
    IngotError,
    InternalError,
    PoisonedRequestError,
    QueueFullError,
    RequestError,
    ResourceError,
    TokenizerError,
    UnknownModelError,
    UsageError,
)
from ingot.serve.openai.fields import FieldError
from ingot.serve.refusal import Draining, InternalRefusal, Refusal
from ingot.serve.unique import unique_id

_log = logging.getLogger(__name__)


class InvalidRequest(Refusal):
    """A request that cannot be served as given."""

    retry = None  # clients do not send a 400 again by themselves


class Poisoned(Refusal):
    """A request that has killed engines, and would again."""

    status, kind, code, retry = 500, "server_error", "poisoned_request", False


class UnknownModel(Refusal):
    """A name that no model has."""

    status, kind, code, retry = 404, "not_found_error", "model_not_found", None


class UnknownRoute(Refusal):
    """A path, or a method on one, that this server does not have."""

    status, kind, code, retry = 404, "not_found_error", "unknown_url", None


class WrongMethod(Refusal):
    """A path with another method."""

    status, code, retry = 405, "method_not_allowed", None


class TooMany(Refusal):
    """An engine whose queue is full."""

    status, kind, code, retry = 429, "rate_limit_error", "queue_full", True


class Unavailable(Refusal):
    """A model that cannot answer now."""

    status, kind, code, retry = 503, "service_unavailable", "unavailable", True


class EngineDead(Unavailable):
    """An engine that ended while it worked for the request."""

    code = "engine_dead"


class LoadFailed(Unavailable):
    """A model that cannot be loaded. It could not the next time either."""

    code, retry = "load_failed", False


class OutOfMemory(Unavailable):
    """A model for which there is no memory."""

    code = "out_of_memory"


RETRY_SECONDS = 2.0

# The first class that fits decides.
TABLE: tuple[tuple[type[IngotError], type[Refusal], float], ...] = (
    (PoisonedRequestError, Poisoned, 0.0),
    (RequestError, InvalidRequest, 0.0),
    (TokenizerError, InvalidRequest, 0.0),
    (UnknownModelError, UnknownModel, 0.0),
    (DrainingError, Draining, RETRY_SECONDS),
    (QueueFullError, TooMany, RETRY_SECONDS),
    (EngineDeadError, EngineDead, RETRY_SECONDS),
    (ResourceError, OutOfMemory, RETRY_SECONDS),
    (DeviceError, Unavailable, RETRY_SECONDS),
    (ArtifactError, LoadFailed, 0.0),
    (InternalError, InternalRefusal, 0.0),
    (UsageError, Unavailable, RETRY_SECONDS),  # of a model that was closed meanwhile
)


def refusal_of(error: Exception, request_id: str) -> Refusal:
    """The answer that an error becomes. What is not ours to show is logged under the id."""
    if isinstance(error, Refusal):
        return error
    for kind, refusal, seconds in TABLE:
        if isinstance(error, kind) and refusal is not InternalRefusal:
            return _refusal(error, refusal, seconds)
    _log.error("request %s failed", request_id, exc_info=error)
    return InternalRefusal(
        f"an internal error ended the request; the server's log has it under {request_id}"
    )


def noted_refusal(error: Exception, scope: MutableMapping[str, Any]) -> Refusal:
    """The answer to an ASGI request that failed. The request's state gets its code, for the log of
    whoever stands around."""
    state = scope.get("state", {})
    refusal = refusal_of(error, state.get("request_id") or unique_id())
    state["error"] = refusal.code
    return refusal


def _refusal(error: IngotError, kind: type[Refusal], seconds: float) -> Refusal:
    refusal = kind(error.found, hint=error.hint, retry_after=seconds)
    if isinstance(error, FieldError):
        refusal.param, refusal.code = error.param, error.code
    if isinstance(refusal, UnknownModel):
        refusal.param = "model"
    if isinstance(error, GrammarError):  # found by the engine, which compiles it
        refusal.param, refusal.code = "structured_outputs", "invalid_grammar"
    return refusal
