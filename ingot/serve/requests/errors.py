"""Table of errors and their answers. Texts of errors that are not ours stay in the log."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any, NamedTuple

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
    SessionError,
    SessionLimitError,
    TokenizerError,
    UnknownModelError,
    UnknownSessionError,
    UsageError,
)
from ingot.runtime.unique import unique_id
from ingot.serve.openai.fields import FieldError
from ingot.serve.refusal import InternalRefusal, Refusal

_log = logging.getLogger(__name__)


class UnknownRoute(Refusal):
    """A path, or a method on one, that this server does not have."""

    status, kind, code, retry = 404, "not_found_error", "unknown_url", None


class Row(NamedTuple):
    """Row of the table: the answer to an error of ours.

    Attributes:
        status: of HTTP; GRPC_STATUSES has that of gRPC.
        kind, code: OpenAI's type and code.
        retry: whether the client should send the request again; None: as it thinks best.
        seconds: after which it may.
    """

    error: type[IngotError]
    status: int
    kind: str
    code: str
    retry: bool | None = None
    seconds: float = 0.0


INVALID, MISSING, LIMIT = "invalid_request_error", "not_found_error", "rate_limit_error"
AWAY, SERVER = "service_unavailable", "server_error"
SOON = 2.0  # seconds

# The first row that fits decides.
TABLE = (
    Row(PoisonedRequestError, 500, SERVER, "poisoned_request", retry=False),
    Row(GrammarError, 400, INVALID, "invalid_grammar"),  # found by the engine, which compiles it
    Row(UnknownSessionError, 404, MISSING, "session_not_found"),
    Row(SessionError, 409, INVALID, "session_busy", retry=True),
    Row(RequestError, 400, INVALID, "invalid_value"),
    Row(TokenizerError, 400, INVALID, "invalid_value"),
    Row(UnknownModelError, 404, MISSING, "model_not_found"),
    Row(DrainingError, 503, AWAY, "draining", True, SOON),
    Row(QueueFullError, 429, LIMIT, "queue_full", True, SOON),
    Row(SessionLimitError, 429, LIMIT, "too_many_sessions", True, SOON),
    Row(EngineDeadError, 503, AWAY, "engine_dead", True, SOON),
    Row(ResourceError, 503, AWAY, "out_of_memory", True, SOON),
    Row(DeviceError, 503, AWAY, "unavailable", True, SOON),
    Row(ArtifactError, 503, AWAY, "load_failed", retry=False),  # nor the next time
    Row(InternalError, 500, SERVER, "internal"),
    Row(UsageError, 503, AWAY, "unavailable", True, SOON),  # a model that was closed meanwhile
)
# The fields at fault where an error does not name one.
PARAMS: dict[type[IngotError], str] = {
    UnknownModelError: "model",
    GrammarError: "structured_outputs",
}
# gRPC's status for each of HTTP; INTERNAL for others.
GRPC_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "FAILED_PRECONDITION",
    413: "RESOURCE_EXHAUSTED",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


def refusal_of(error: Exception, request_id: str) -> Refusal:
    """The answer that an error becomes. What is not ours to show is logged under the id."""
    if isinstance(error, Refusal):
        return error
    row = next((each for each in TABLE if isinstance(error, each.error)), None)
    if isinstance(error, IngotError) and row is not None and row.error is not InternalError:
        return _refusal(error, row)
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


def _refusal(error: IngotError, row: Row) -> Refusal:
    refusal = Refusal(
        error.found, hint=error.hint, param=PARAMS.get(row.error), retry_after=row.seconds
    )
    refusal.status, refusal.kind, refusal.code = row.status, row.kind, row.code
    refusal.retry = row.retry
    if isinstance(error, FieldError):
        refusal.param, refusal.code = error.param, error.code
    return refusal
