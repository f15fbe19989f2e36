"""Every error that HTTP answers with: its status, type and code, and whether to try again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import grpc
import msgspec
import pytest

from ingot import errors
from ingot.serve.refusal import InternalRefusal, Refusal
from ingot.serve.requests.errors import GRPC_STATUSES, PARAMS, TABLE, Row, noted_refusal, refusal_of
from tests.conftest import ROOT

INVALID, SERVER, AWAY = "invalid_request_error", "server_error", "service_unavailable"
# Status, type, code, and the header x-should-retry.
ERRORS = {
    "BadKey": (401, "authentication_error", "invalid_api_key", "false"),
    "BodyTooLarge": (413, INVALID, "body_too_large", "false"),
    "Draining": (503, AWAY, "draining", "true"),
    "Forbidden": (403, "permission_error", "not_permitted", "false"),
    "HeadersTooLarge": (431, INVALID, "headers_too_large", "false"),
    "InternalRefusal": (500, SERVER, "internal", None),
    "Loading": (503, AWAY, "loading", "true"),
    "MalformedRequest": (400, INVALID, "malformed_request", "false"),
    "QueueFull": (429, "rate_limit_error", "queue_full", "true"),
    "QueueTimeout": (429, "rate_limit_error", "queue_timeout", "true"),
    "RequestTimeout": (504, SERVER, "request_timeout", "false"),
    "SlowRequest": (408, INVALID, "request_too_slow", None),
    "UnknownRoute": (404, "not_found_error", "unknown_url", None),
    "WrongMethod": (405, INVALID, "method_not_allowed", None),
    # What becomes of errors of the runtime and of models.
    "ArtifactError": (503, AWAY, "load_failed", "false"),
    "DeviceError": (503, AWAY, "unavailable", "true"),
    "DrainingError": (503, AWAY, "draining", "true"),
    "EngineDeadError": (503, AWAY, "engine_dead", "true"),
    "GrammarError": (400, INVALID, "invalid_grammar", None),
    "InternalError": (500, SERVER, "internal", None),
    "PoisonedRequestError": (500, SERVER, "poisoned_request", "false"),
    "QueueFullError": (429, "rate_limit_error", "queue_full", "true"),
    "RequestError": (400, INVALID, "invalid_value", None),
    "ResourceError": (503, AWAY, "out_of_memory", "true"),
    "SessionError": (409, INVALID, "session_busy", "true"),
    "SessionLimitError": (429, "rate_limit_error", "too_many_sessions", "true"),
    "TokenizerError": (400, INVALID, "invalid_value", None),
    "UnknownModelError": (404, "not_found_error", "model_not_found", None),
    "UnknownSessionError": (404, "not_found_error", "session_not_found", None),
    "UsageError": (503, AWAY, "unavailable", "true"),
}


def kinds(of: type = Refusal) -> Iterator[type[Refusal]]:
    for kind in of.__subclasses__():
        if kind.__module__.startswith("ingot.") and ".grpc." not in kind.__module__:
            yield kind
        yield from kinds(kind)


def told(refusal: Refusal) -> tuple[int, str, str, str | None]:
    """What a client sees of a refusal."""
    headers = {name.decode(): value.decode() for name, value in refusal.headers()}
    error = msgspec.json.decode(refusal.body())["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return refusal.status, error["type"], error["code"], headers.get("x-should-retry")


def test_every_error_is_listed_and_is_what_the_list_says() -> None:
    found = {}
    for kind in kinds():
        refusal = kind("it is wrong", hint="Do it right.", param="n", retry_after=1.5)
        error = msgspec.json.decode(refusal.body())["error"]
        assert error["message"] == "it is wrong\nDo it right." and error["param"] == "n"
        assert (b"retry-after", b"2") in refusal.headers()
        found[kind.__name__] = told(refusal)
    found |= {row.error.__name__: told(refusal_of(row.error("wrong"), "id")) for row in TABLE}
    assert found == ERRORS


def test_every_status_that_a_call_may_get_is_one_of_grpc() -> None:
    assert {grpc.StatusCode[name] for name in GRPC_STATUSES.values()}
    without = {status for status, *_ in ERRORS.values()} - GRPC_STATUSES.keys()
    assert without == {405, 408, 431, 500}  # of HTTP alone, and INTERNAL


# What the errors of fields say instead of `invalid_value`.
OF_FIELDS = {
    "missing_required_parameter", "unsupported_parameter", "context_length_exceeded",
    "invalid_grammar", "invalid_json",
}  # fmt: skip


def listed(page: str) -> set[tuple[int, str, str]]:
    """The status, type and code of each error in the page's table, whose rows may have several."""
    found = set()
    for statuses, types, codes in re.findall(r"^\| ([\d, ]+) \| (.*?) \| (.*) \|$", page, re.M):
        kinds, names = (re.findall(r"`([a-z_]+)`", cell) for cell in (types, codes))
        columns = [statuses.split(", "), kinds]
        # Several of a row belong together in their order; one belongs to all codes.
        several = [each if len(each) > 1 else each * len(names) for each in columns]
        found |= {(int(s), kind, code) for s, kind, code in zip(*several, names, strict=True)}
    return found


def test_the_page_has_every_error_with_its_status_and_type() -> None:
    page = (ROOT / "docs/serving.md").read_text()
    wanted = {(status, kind, code) for status, kind, code, _ in ERRORS.values()}
    wanted |= {(400, INVALID, code) for code in OF_FIELDS}
    assert listed(page) == wanted
    assert listed(page.replace("| 408 |", "| 409 |")) != wanted


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.error.__name__)
def test_errors_of_ours_become_the_answer_of_the_table(row: Row) -> None:
    refusal = refusal_of(row.error("it is wrong", hint="Do it right."), "id")
    if row.error is errors.InternalError:
        assert isinstance(refusal, InternalRefusal) and "wrong" not in str(refusal)
        return
    assert str(refusal) == "it is wrong\nDo it right." and refusal.param == PARAMS.get(row.error)
    assert refusal.retry_after == row.seconds
    assert bool(refusal.retry_after) == (refusal.status in (429, 503) and refusal.retry is True)


def test_the_code_of_a_refusal_is_noted_for_the_log() -> None:
    scope: dict[str, Any] = {"state": {"request_id": "a"}}
    refusal = noted_refusal(errors.UnknownModelError("there is none"), scope)
    assert scope["state"] == {"request_id": "a", "error": refusal.code} and refusal.code
