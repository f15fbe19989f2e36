"""Bad requests to the whole of the HTTP layer: every one has a defined answer, which tells nothing
of the inside, and disturbs nobody."""

from __future__ import annotations

import asyncio
import json
import re
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingot.serve.edge.keys import make_key
from ingot.serve.http.app import build_app
from ingot.serve.openai.requests import ChatRequest, CompletionRequest
from tests.serve.edge.edge_server import serving, status_of, with_limits
from tests.support.fake_engine import FakeEngine, FakeModels, says
from tests.support.until import until

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
BASE = {
    TEXT: {"model": "bard", "prompt": "To be", "max_tokens": 2},
    CHAT: {"model": "bard", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2},
}
FIELDS = [
    *((TEXT, name) for name in CompletionRequest.__struct_fields__),
    *((CHAT, name) for name in ChatRequest.__struct_fields__),
]
VALUES: dict[str, Any] = {
    "null": None,
    "empty text": "",
    "text": "x",
    "empty list": [],
    "list of null": [None],
    "list of lists": [[[]]],
    "empty object": {},
    "object": {"x": 1},
    "false": False,
    "true": True,
    "-1": -1,
    "0": 0,
    "1": 1,
    "-0.0": -0.0,
    "1.5": 1.5,
    "2^31": 2**31,
    "2^63": 2**63,
    "2^64": 2**64,
    "1e308": 1e308,
    "long list": [0] * 100_000,
    "long text": "y" * 1_000_000,
    "NUL": "\0",
}
# Fields that are wrong only together with others: the error names one of them.
TOGETHER = {
    "logprobs": {"top_logprobs"},
    "top_logprobs": {"logprobs"},
    "min_tokens": {"max_tokens"},
    "max_completion_tokens": {"max_tokens"},
    "stream": {"prompt_logprobs"},
    "n": {"temperature", "best_of"},
    "tool_choice": {"tools"},
    "truncate_prompt_tokens": {"prompt", "messages"},
}
LEAKS = re.compile(
    r"0x[0-9a-f]{6,}|/home|/tmp|/usr|/root|Traceback|File \"|site-packages|object at|\.py\b"
)


@pytest.fixture(scope="module")
def world():
    """A server around the real application, with an engine that answers at once."""
    models = FakeModels(bard=FakeEngine(says("not", " to be")))
    with asyncio.Runner() as runner:
        # The loop stands still between two requests, which must not end a connection.
        limits = with_limits(connection_keep_alive=1e6)
        context = serving(limits, build=lambda edge: build_app(models, gate=edge))
        served = runner.run(context.__aenter__())
        client = served.client(timeout=30)

        def post(path: str, content: bytes, **headers: str) -> httpx.Response:
            return runner.run(client.post(path, content=content, headers=headers))

        yield SimpleNamespace(
            post=post,
            get=lambda path: runner.run(client.get(path)),
            wire=lambda data: runner.run(served.raw(data, ends=True)),
        )
        ended = until(lambda: models.num_leases == 0 and not served.edge._open)
        runner.run(asyncio.wait_for(ended, 60))
        runner.run(client.aclose())
        runner.run(context.__aexit__(None, None, None))


def check(response: httpx.Response, allowed: tuple[int, ...] = (400,)) -> dict[str, Any] | None:
    """The error of an answer, which must be one of those that are documented; None for none."""
    if response.status_code == 200:
        return None
    assert response.status_code in allowed, (response.status_code, response.text[:300])
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str) and isinstance(error["type"], str)
    assert error["code"] is None or isinstance(error["code"], str)
    assert not LEAKS.search(response.text), response.text[:300]
    assert len(response.text) < 5_000
    return error


def judge(world, path: str, field: str, value: Any) -> None:
    body = json.dumps(BASE[path] | {field: value}).encode()
    response = world.post(path, body)
    error = check(response, (400, 404) if field == "model" else (400,))
    if error is not None:
        param = (error["param"] or "nothing").split(".")[0].split("[")[0]
        assert param in {field} | TOGETHER.get(field, set()), (field, value, error)


@pytest.mark.parametrize("path, field", FIELDS)
def test_a_field_of_another_type_is_named(world, path, field):
    for name in ("list of lists", "object", "2^64"):
        judge(world, path, field, VALUES[name])


@pytest.mark.thorough
@pytest.mark.parametrize("path, field", FIELDS)
def test_no_value_of_a_field_is_too_bad_to_be_answered(world, path, field):
    for value in VALUES.values():
        judge(world, path, field, value)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff\xfe",
        b'{"model": "\xff"}',
        b'{"\xff": 1}',
        b'{"model": "\\ud800"}',
        b'{"model": "bard", "prompt": "x", "temperature": NaN}',
        b'{"model": "bard", "prompt": "x", "temperature": Infinity}',
        b'{"model": "bard", "prompt": "x"} trailing',
        b'{"model": "bard"}',
        b'{"a":' * 100 + b"1" + b"}" * 100,
        b"[" * 100_000,
        b'{"prompt":' + b"[" * 500_000 + b"]" * 500_000 + b"}",
        b"\0" * 1000,
        b"%PDF-1.4",
    ],
)
def test_a_body_that_is_no_request_is_refused(world, body):
    for path in (TEXT, CHAT, "/tokenize", "/detokenize"):
        assert check(world.post(path, body)) is not None


def test_a_number_that_no_float_holds_is_refused(world):
    error = check(world.post(TEXT, b'{"model": "bard", "prompt": "x", "temperature": 1e999}'))
    assert error


def test_unknown_things_are_named(world):
    error = check(world.post(TEXT, b'{"model": "nobody", "prompt": "x"}'), (404,))
    assert error and error["code"] == "model_not_found"
    assert check(world.get("/v1/nothing"), (404,)) is not None
    assert check(world.get("/v1/completions"), (405,)) is not None
    assert check(world.get("/v1/models/%2e%2e%2fetc"), (404,)) is not None


def test_a_field_that_nobody_knows_is_ignored(world):
    body = json.dumps(BASE[TEXT] | {"no_such_field": {"a": [1]}}).encode()
    assert world.post(TEXT, body).status_code == 200


def test_a_prompt_that_is_too_long_is_refused_by_its_code(world):
    body = json.dumps(BASE[TEXT] | {"prompt": "word " * 5_000}).encode()
    error = check(world.post(TEXT, body))
    assert error and error["code"] == "context_length_exceeded"


def test_compressed_bodies_are_not_unpacked(world):
    import gzip

    bomb = gzip.compress(b" " * 10_000_000)
    assert check(world.post(TEXT, bomb, **{"content-encoding": "gzip"})) is not None


def test_a_fault_is_found_by_what_these_tests_look_for():
    """A negative control: a leak fails the check of every answer here."""
    error = {"message": "at 0x7f0000000000", "type": "t", "param": None, "code": None}
    with pytest.raises(AssertionError):
        check(httpx.Response(400, json={"error": error}))
    with pytest.raises(AssertionError):
        check(httpx.Response(500, json={"error": error | {"message": "m"}}))


# What a fuzzer makes of requests: JSON near that of a request, and bytes near those of HTTP.
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=10,
)
NEAR = st.sampled_from((TEXT, CHAT)).flatmap(
    lambda path: st.tuples(
        st.just(path),
        st.dictionaries(
            st.sampled_from([name for of, name in FIELDS if of == path]),
            JSON | st.sampled_from([value for name, value in VALUES.items() if "long" not in name]),
            max_size=4,
        ),
    )
)
MUTATED = st.tuples(st.integers(0, 200), st.binary(max_size=8), st.integers(0, 8))
PARTS = st.sampled_from(
    [
        b"POST /v1/completions HTTP/1.1\r\n",
        b"GET /live HTTP/1.1\r\n",
        b"host: 127.0.0.1\r\n",
        b"content-length: 5\r\n",
        b"content-length: -1\r\n",
        b"transfer-encoding: chunked\r\n",
        b"connection: close\r\n",
        b"connection: upgrade\r\nupgrade: websocket\r\n",
        b"expect: 100-continue\r\n",
        b"authorization: Bearer \xff\r\n",
        b"x-request-id: \x01\r\n",
        b"traceparent: 00-zz\r\n",
        b"\r\n",
        b"\n",
        b"0\r\n\r\n",
        b"5\r\nhello\r\n",
        b"{}",
        b"\0",
        b"a" * 70_000,
        b"x: y\r\n" * 120,
    ]
)
FUZZ = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def fuzz_fields(world, case: tuple[str, dict[str, Any]]) -> None:
    path, fields = case
    body = json.dumps(BASE[path] | fields).encode()
    check(world.post(path, body), (400, 404))


def fuzz_bytes(world, place: int, new: bytes, cut: int) -> None:
    body = json.dumps(BASE[CHAT]).encode()
    check(world.post(CHAT, body[:place] + new + body[place + cut :]), (400, 404))


def fuzz_wire(world, parts: list[bytes]) -> None:
    """The client ends its side after the bytes, so the server always has an end to answer to."""
    answer = world.wire(b"".join(parts))
    assert not answer or status_of(answer) in (100, 200, 400, 404, 405, 408, 413, 431)
    assert not LEAKS.search(answer.decode("latin-1"))


@FUZZ
@given(case=NEAR)
def test_fields_of_a_fuzzer(world, case):
    fuzz_fields(world, case)


@FUZZ
@given(case=MUTATED)
def test_bodies_of_a_fuzzer(world, case):
    fuzz_bytes(world, *case)


@FUZZ
@given(parts=st.lists(PARTS, max_size=10))
def test_connections_of_a_fuzzer(world, parts):
    fuzz_wire(world, parts)


@pytest.mark.slow
@settings(FUZZ, max_examples=600)
@given(case=NEAR, mutated=MUTATED, parts=st.lists(PARTS, max_size=10))
def test_a_fuzzer_for_longer(world, case, mutated, parts):
    fuzz_fields(world, case)
    fuzz_bytes(world, *mutated)
    fuzz_wire(world, parts)


def test_every_route_asks_for_a_key_but_those_of_probes(tmp_path):
    """All routes of the application by its own list: without a key, with a wrong one, the right."""
    text, key = make_key("a", "admin")
    path = tmp_path / "keys.txt"
    path.touch(0o600)
    path.write_text(key.line)
    models = FakeModels(bard=FakeEngine(says("x")))
    app = build_app(models)

    async def main() -> set[tuple[str, str]]:
        found = set()
        async with serving(app=app, key_file=path) as served, served.client() as client:
            for route in app.routes:
                at = re.sub(r"{[^}]*}", "bard", route.path)
                for method in sorted(route.methods - {"HEAD"}):
                    for headers in ({}, {"Authorization": "Bearer wrong"}):
                        response = await client.request(method, at, headers=headers)
                        if response.status_code != 401:
                            found.add((method, at))
                    if not at.endswith("/events"):
                        headers = {"Authorization": f"Bearer {text}"}
                        response = await client.request(method, at, headers=headers)
                        assert response.status_code not in (401, 403), at
        return found

    assert len(app.routes) > 8
    probes = ("/live", "/health", "/v2/health/live", "/v2/health/ready")
    assert asyncio.run(main()) == {("GET", path) for path in probes}
