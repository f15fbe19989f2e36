"""Streams byte by byte, each line of the contract as a test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ingot.errors import EngineDeadError
from ingot.serve.engine import Engine, Job, Piece, Progress
from ingot.serve.http.app import build_app
from ingot.serve.http.reply import Reply
from ingot.serve.requests.context import HttpSettings
from tests.support.asgi import Call, called, calling
from tests.support.fake_engine import FakeEngine, FakeModels, Script, Step, says
from tests.support.until import until

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "Speak!"}]


def ask(script: Script, path: str = CHAT, **fields: Any) -> Call:
    """A stream's answer to a short request."""
    app = build_app(FakeModels(bard=FakeEngine(script)))
    given = {"messages": MESSAGES} if path == CHAT else {"prompt": "Speak!"}
    body = {"model": "bard", "stream": True, **given, **fields}
    return asyncio.run(called(app, "POST", path, body))


def events(call: Call) -> list[Any]:
    """The JSON of each event; the call must end with [DONE]. Every line has the form of one."""
    assert call.status == 200
    assert call.headers["content-type"] == "text/event-stream; charset=utf-8"
    *parts, done, rest = call.body.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    for part in parts:
        assert part.startswith(b"data: ") and b"\n" not in part
    return [json.loads(part.removeprefix(b"data: ")) for part in parts]


def test_the_first_chunk_of_a_chat_has_the_role_and_an_empty_text() -> None:
    chunks = events(ask(says("To be", ", or not")))
    assert chunks[0]["choices"] == [
        {
            "index": 0,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
    ]


@pytest.mark.parametrize("path, kind", [(CHAT, "chat.completion.chunk"), (TEXT, "text_completion")])
def test_all_chunks_have_one_head(path: str, kind: str) -> None:
    chunks = events(ask(says("a", "b", "c"), path, stream_options={"include_usage": True}))
    names = ("id", "object", "created", "model", "system_fingerprint")
    heads = {tuple(chunk[name] for name in names) for chunk in chunks}
    assert len(heads) == 1
    _, found, created, model, fingerprint = heads.pop()
    assert (found, model, fingerprint) == (kind, "bard", "1.0-0badcafe")
    assert isinstance(created, int)


def test_the_bytes_of_a_chat() -> None:
    call = ask(says('so "it\nis"', "ü"))
    text = call.body.decode()
    head = text[: text.index('"choices":')]
    tail = ',"logprobs":null,"finish_reason":null}]}\n\n'
    assert text == (
        f'{head}"choices":[{{"index":0,"delta":{{"role":"assistant","content":""}}{tail}'
        f'{head}"choices":[{{"index":0,"delta":{{"content":"so \\"it\\nis\\""}}{tail}'
        f'{head}"choices":[{{"index":0,"delta":{{"content":"ü"}}{tail}'
        f'{head}"choices":[{{"index":0,"delta":{{}},"logprobs":null,'
        f'"finish_reason":"stop","stop_reason":null}}]}}\n\n'
        "data: [DONE]\n\n"
    )


def test_the_bytes_of_a_completion() -> None:
    text = ask(says("one", "two", reason="length"), TEXT).body.decode()
    head = text[: text.index('"choices":')]
    assert text == (
        f'{head}"choices":[{{"index":0,"text":"one","logprobs":null,"finish_reason":null,'
        f'"stop_reason":null}}]}}\n\n'
        f'{head}"choices":[{{"index":0,"text":"two","logprobs":null,"finish_reason":"length",'
        f'"stop_reason":null}}]}}\n\n'
        "data: [DONE]\n\n"
    )


def test_the_reason_comes_last_and_with_an_empty_delta() -> None:
    *chunks, last = events(ask(says("a", "b", reason="length")))
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 3
    assert last["choices"][0] == {
        "index": 0,
        "delta": {},
        "logprobs": None,
        "finish_reason": "length",
        "stop_reason": None,
    }


def test_a_stop_reason_is_told() -> None:
    def script(job: Job) -> Iterable[Step]:
        yield Progress([Piece(0, "a", [1], None, "stop", "END")], True)

    assert events(ask(script))[-1]["choices"][0]["stop_reason"] == "END"
    assert events(ask(script, TEXT))[-1]["choices"][0]["stop_reason"] == "END"


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_text_that_is_held_back_makes_no_chunk(path: str) -> None:
    texts = [
        (choice.get("delta") or choice).get("content", choice.get("text"))
        for chunk in events(ask(says("a", "", "", "b"), path))
        for choice in chunk["choices"]
    ]
    assert [text for text in texts if text] == ["a", "b"]
    assert texts.count("") == (path == CHAT)  # the first one alone


def test_scores_of_text_that_is_held_back_are_told() -> None:
    def script(job: Job) -> Iterable[Step]:
        yield Progress([Piece(0, "", [7], [[(7, -0.5, 1, "a")]])])
        yield Progress([Piece(0, "ab", [8], [[(8, -0.25, 1, "b")]], "stop")], True)

    choices = [event["choices"][0] for event in events(ask(script, TEXT, logprobs=1))]
    assert [choice["logprobs"]["token_logprobs"] for choice in choices] == [[-0.5], [-0.25]]


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_usage_is_null_until_the_last_chunk(path: str) -> None:
    script = says("a", "b", "c", num_cached_tokens=1)
    *chunks, last = events(ask(script, path, stream_options={"include_usage": True}))
    assert all(chunk["usage"] is None for chunk in chunks)
    num_prompt = last["usage"]["prompt_tokens"]
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": num_prompt,
        "completion_tokens": 3,
        "total_tokens": num_prompt + 3,
        "prompt_tokens_details": {"cached_tokens": 1},
    }


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_without_being_asked_for_there_is_no_usage(path: str) -> None:
    assert not any("usage" in chunk for chunk in events(ask(says("a", "b"), path)))


def test_usage_in_every_chunk() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = events(ask(says("a", "b"), TEXT, stream_options=options))
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 2]


def test_obfuscation_is_accepted() -> None:
    options = {"include_obfuscation": True}
    plain, asked = (ask(says("a"), TEXT, **f) for f in ({}, {"stream_options": options}))
    assert len(plain.body) == len(asked.body)


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_choices_are_interleaved_by_their_index(path: str) -> None:
    chunks = events(ask(says("a", "b"), path, n=3))
    indexes = [chunk["choices"][0]["index"] for chunk in chunks]
    assert set(indexes) == {0, 1, 2}
    for index in range(3):
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        assert mine[-1]["finish_reason"] == "stop"
        parts = [(c.get("delta") or c).get("content", c.get("text")) for c in mine]
        assert "".join(part or "" for part in parts) == "ab"
    assert indexes != sorted(indexes)


def test_a_stream_of_several_prompts_ends_when_all_have() -> None:
    chunks = events(ask(says("a", "b"), TEXT, prompt=["x", "y", "z"]))
    ends = [c["index"] for e in chunks for c in e["choices"] if c["finish_reason"]]
    assert sorted(ends) == [0, 1, 2]


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_an_error_before_the_stream_is_a_status(path: str) -> None:
    def script(job: Job) -> Iterable[Step]:
        yield EngineDeadError("the engine ended")

    call = ask(script, path)
    assert call.status == 503
    assert call.headers["retry-after"] == "2" and call.headers["x-should-retry"] == "true"
    assert call.json()["error"] == {
        "message": "the engine ended",
        "type": "service_unavailable",
        "param": None,
        "code": "engine_dead",
    }


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_an_error_in_the_stream_is_an_event(path: str) -> None:
    def script(job: Job) -> Iterable[Step]:
        yield Progress([Piece(0, "a", [1])])
        yield EngineDeadError("the engine ended")

    *_, last = events(ask(script, path))
    assert last["error"]["code"] == "engine_dead"
    assert set(last["error"]) == {"message", "type", "param", "code"}


def test_a_fault_of_ours_shows_nothing_of_itself(caplog: pytest.LogCaptureFixture) -> None:
    def script(job: Job) -> Iterable[Step]:
        raise ZeroDivisionError("secret /home/x")
        yield

    app = build_app(FakeModels(bard=FakeEngine(script)))
    body = {"model": "bard", "prompt": "x"}
    call = asyncio.run(called(app, "POST", TEXT, body, request_id="req-7"))
    assert (call.status, call.json()["error"]["code"]) == (500, "internal")
    assert "req-7" in call.body.decode() and "secret" not in call.body.decode()
    assert "secret" in caplog.text and "req-7" in caplog.text


def waiting(gate: asyncio.Event) -> Script:
    def script(job: Job) -> Iterable[Step]:
        yield gate
        yield Progress([Piece(0, "a", [1])])
        yield Progress([Piece(0, "b", [2], None, "stop")], True)

    return script


def test_a_stream_that_waits_says_that_it_lives() -> None:
    async def run() -> Call:
        gate = asyncio.Event()
        models = FakeModels(bard=FakeEngine(waiting(gate)))
        app = build_app(models, HttpSettings(ping_seconds=0.01))
        body = json.dumps({"model": "bard", "prompt": "x", "stream": True}).encode()
        async with calling(app, "POST", TEXT, body) as call:
            await call.until(b": ping\n\n: ping\n\n")
            gate.set()
        return call

    call = asyncio.run(run())
    assert call.status == 200 and call.body.startswith(b": ping\n\n: ping\n\n")
    text = call.body.replace(b": ping\n\n", b"")
    assert text.count(b"data: ") == 3 and text.endswith(b"data: [DONE]\n\n")


def test_a_stream_whose_model_is_still_loaded_says_that_it_lives() -> None:
    gate = asyncio.Event()

    class Loading(FakeModels):
        @asynccontextmanager
        async def lease(self, name: str) -> AsyncIterator[Engine]:
            await gate.wait()
            async with super().lease(name) as engine:
                yield engine

    async def run() -> Call:
        app = build_app(Loading(bard=FakeEngine(says("a"))), HttpSettings(ping_seconds=0.01))
        body = json.dumps({"model": "bard", "prompt": "x", "stream": True}).encode()
        async with calling(app, "POST", TEXT, body) as call:
            await call.until(b": ping\n\n")
            gate.set()
        return call

    assert asyncio.run(run()).body.endswith(b"data: [DONE]\n\n")


def test_what_is_written_puts_the_next_comment_off() -> None:
    sent: list[bytes] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message.get("body", b""))

    async def main() -> None:
        reply = Reply(send)
        with reply.kept_awake(0.0):  # it is looked at in each turn of the loop
            for _ in range(20):
                await reply.write(b"x")
                await asyncio.sleep(0)

    asyncio.run(main())
    assert sent == [b"", *[b"x"] * 20]


def test_nothing_follows_the_end_however_long_it_takes_to_be_sent() -> None:
    sent: list[bytes] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        if "body" in message:
            sent.append(message["body"])
        if message["type"] == "http.response.body" and not message.get("more_body"):
            for _ in range(20):
                await asyncio.sleep(0)

    async def main() -> None:
        reply = Reply(send)
        with reply.kept_awake(0.0):
            await reply.end(b"end")

    asyncio.run(main())
    assert sent == [b"end"]


def test_an_error_after_a_ping_is_an_event() -> None:
    async def run() -> Call:
        gate = asyncio.Event()

        def script(job: Job) -> Iterable[Step]:
            yield gate
            yield EngineDeadError("the engine ended")

        app = build_app(FakeModels(bard=FakeEngine(script)), HttpSettings(ping_seconds=0.01))
        body = json.dumps({"model": "bard", "prompt": "x", "stream": True}).encode()
        async with calling(app, "POST", TEXT, body) as call:
            await call.until(b": ping\n\n")
            gate.set()
        return call

    call = asyncio.run(run())
    assert call.status == 200
    assert b'"code":"engine_dead"}}\n\ndata: [DONE]\n\n' in call.body


def test_a_stream_that_speaks_gets_no_comments() -> None:
    assert b": ping" not in ask(says(*"abcdefgh"), TEXT).body


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "path, given, num_jobs",
    [
        (CHAT, {"messages": MESSAGES}, 1),
        (TEXT, {"prompt": "x"}, 1),
        (TEXT, {"prompt": ["a", "b", "c"]}, 3),
    ],
)
def test_a_client_that_leaves_aborts_its_jobs(
    path: str, given: dict[str, Any], num_jobs: int, stream: bool
) -> None:
    async def run() -> tuple[FakeModels, FakeEngine, Call]:
        engine = FakeEngine(waiting(asyncio.Event()))
        models = FakeModels(bard=engine)
        body = json.dumps({"model": "bard", "stream": stream, **given}).encode()
        async with calling(build_app(models), "POST", path, body) as call:
            await until(lambda: len(engine.jobs) == num_jobs)
            call.leave()
            await engine.ended.wait()
        return models, engine, call

    models, engine, call = asyncio.run(run())
    assert sorted(engine.aborted) == sorted(job.id for job in engine.jobs)
    assert models.num_leases == 0
    assert call.bodies == []


def test_the_parser_of_events_finds_what_is_wrong() -> None:
    for body in (b"data: {}\n\ndata: [DONE]\n", b"data: {}\n\n", b"{}\n\ndata: [DONE]\n\n"):
        call = Call(200, {"content-type": "text/event-stream; charset=utf-8"}, [body])
        with pytest.raises((AssertionError, ValueError)):
            events(call)
