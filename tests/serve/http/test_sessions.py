"""Sessions over HTTP: whose they are, how many, and that they answer as whole prompts do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ingot.errors import UnknownSessionError
from ingot.runtime.llm import LLM
from ingot.serve import session_jobs
from ingot.serve.http.app import build_app
from ingot.serve.isolated.client import IsolatedEngine
from ingot.serve.local import LocalEngine
from ingot.serve.open_model import open_model
from ingot.serve.settings import ModelSettings
from tests.support.asgi import Call, called
from tests.support.fake_engine import FakeModels

IDS = [*range(3, 30)]
GREEDY = {"temperature": 0, "max_tokens": 6, "ignore_eos": True, "return_token_ids": True}
CHAT = [{"role": "user", "content": "Who is there?"}]


class Client:
    """Asks a server as one key."""

    def __init__(self, app: Any, key: str = "ann") -> None:
        self.app, self.key = app, key

    async def __call__(self, method: str, path: str, body: Any = None, status: int = 200) -> Any:
        call: Call = await called(self.app, method, path, body, key=self.key)
        assert call.status == status, (call.status, call.body)
        return call.json()

    async def complete(self, prompt: Any, **fields: Any) -> list[int]:
        answer = await self("POST", "/v1/completions", {"prompt": prompt, **GREEDY, **fields})
        return answer["choices"][0]["token_ids"]


@asynccontextmanager
async def serving(path: Any, settings: ModelSettings, isolated: bool = False):
    if isolated:
        engine = await IsolatedEngine.open("m", str(path), settings)
    else:
        engine = LocalEngine(open_model(path, settings), settings)
    try:
        yield Client(build_app(FakeModels(m=engine)))
    finally:
        await engine.close()


def use(path: Any, work: Callable[[Client], Awaitable[None]], isolated=False, **settings: Any):
    async def main():
        async with serving(path, ModelSettings(device="cpu", **settings), isolated) as client:
            await work(client)

    asyncio.run(asyncio.wait_for(main(), 120))


@pytest.mark.parametrize("isolated", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_a_session_answers_as_the_whole_prompt(fake_artifact, isolated):
    async def work(client):
        whole = await client.complete(IDS)
        card = await client("POST", "/v1/sessions", {"prompt": IDS[:10]}, 201)
        assert card["object"] == "session" and card["model"] == "m"
        assert (card["tokens"], card["pending"]) == (10, 1) and card["bytes"] > 0
        one = card["id"]
        fork = (await client("POST", f"/v1/sessions/{one}/fork", {}, 201))["id"]
        assert fork != one
        for each in (one, fork):
            assert await client.complete(IDS[10:], session_id=each) == whole
        after = await client.complete([*IDS, *whole, 7])
        assert await client.complete([7], session_id=one) == after
        assert await client.complete([7], session_id=fork, stream=False) == after
        more = await client.complete([*IDS, *whole, 7, *after])
        assert await client.complete("", session_id=one) == more, "it goes on from what it has"
        card = await client("GET", f"/v1/sessions/{one}")
        assert card["tokens"] == len(IDS) + 6 + 1 + 6 + 6
        gone = await client("DELETE", f"/v1/sessions/{one}")
        assert gone == {"id": one, "deleted": True, "object": "session.deleted"}
        error = await client("GET", f"/v1/sessions/{one}", status=404)
        assert error["error"]["code"] == "session_not_found"
        assert (await client("GET", f"/v1/sessions/{fork}"))["id"] == fork

    use(fake_artifact, work, isolated)


def test_texts_begin_once(fake_artifact):
    async def work(client):
        whole = await client("POST", "/tokenize", {"prompt": "To be"})
        session = (await client("POST", "/v1/sessions", {}, 201))["id"]
        await client.complete("To be", session_id=session, max_tokens=0)
        card = await client("GET", f"/v1/sessions/{session}")
        assert card["tokens"] == whole["count"]
        more = await client("POST", "/tokenize", {"prompt": ", or", "add_special_tokens": False})
        await client.complete(", or", session_id=session, max_tokens=0)
        card = await client("GET", f"/v1/sessions/{session}")
        assert card["tokens"] == whole["count"] + more["count"]

    use(fake_artifact, work)


def test_a_conversation_is_sent_whole_and_computed_once(shakespeare_artifact):
    async def work(client):
        ask = {"temperature": 0, "max_tokens": 12}

        async def chat(messages, **fields):
            body = {"messages": messages, **ask, **fields}
            return await client("POST", "/v1/chat/completions", body)

        session = (await client("POST", "/v1/sessions", {}, 201))["id"]
        messages = [*CHAT]
        for text in ("Speak again.", "And now?"):
            mine = await chat(messages, session_id=session)
            theirs = await chat(messages)
            assert mine["choices"] == theirs["choices"]
            messages += [mine["choices"][0]["message"], {"role": "user", "content": text}]

    use(shakespeare_artifact, work)


def test_sessions_belong_to_the_key_that_made_them(fake_artifact):
    async def work(ann):
        bob = Client(ann.app, "bob")
        session = (await ann("POST", "/v1/sessions", {"prompt": IDS}, 201))["id"]
        for method, path in [
            ("GET", f"/v1/sessions/{session}"),
            ("DELETE", f"/v1/sessions/{session}"),
            ("POST", f"/v1/sessions/{session}/fork"),
        ]:
            error = await bob(method, path, status=404)
            assert error["error"]["code"] == "session_not_found"
        body = {"prompt": [7], "session_id": session}
        await bob("POST", "/v1/completions", body, 404)
        assert await ann.complete([7], session_id=session)

    use(fake_artifact, work)


@pytest.mark.parametrize("session_id", ["x", "sess-00000000-0", "sess-" + 90 * "a", "é"])
def test_unknown_ids(fake_artifact, session_id):
    async def work(client):
        await client("GET", f"/v1/sessions/{session_id}", status=404)
        body = {"prompt": [7], "session_id": session_id}
        error = await client("POST", "/v1/completions", body, 404)
        assert error["error"]["code"] == "session_not_found"

    use(fake_artifact, work)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"prompt": [[1], [2]]}, "one prompt"),
        ({"prompt": [1], "n": 2}, "one completion"),
        ({"prompt": [1] * 70}, "are too many|tokens"),
        ({"prompt": [9999]}, "vocabulary"),
    ],
)
def test_what_a_session_cannot_be_asked_for(fake_artifact, fields, match):
    async def work(client):
        session = (await client("POST", "/v1/sessions", {"prompt": IDS}, 201))["id"]
        error = await client("POST", "/v1/completions", {**fields, "session_id": session}, 400)
        assert any(word in error["error"]["message"] for word in match.split("|"))
        assert len(await client.complete([7], session_id=session)) == 6, "and it goes on"

    use(fake_artifact, work)


def test_one_thing_at_a_time(fake_artifact):
    async def work(client):
        session = (await client("POST", "/v1/sessions", {"prompt": IDS}, 201))["id"]
        asked = [
            called(
                client.app, "POST", "/v1/completions",
                {"prompt": [7], **GREEDY, "max_tokens": 10, "session_id": session}, key="ann",
            )
            for _ in range(4)
        ]  # fmt: skip
        codes = sorted([call.status for call in await asyncio.gather(*asked)])
        assert codes[0] == 200 and set(codes) <= {200, 409}, codes
        assert len(await client.complete([7], session_id=session, max_tokens=1)) == 1

    use(fake_artifact, work)


def test_bounds_of_number_bytes_and_time(fake_artifact, monkeypatch):
    async def number(client):
        first = (await client("POST", "/v1/sessions", {}, 201))["id"]
        await client("POST", "/v1/sessions", {}, 201)
        error = await client("POST", "/v1/sessions", {}, 429)
        assert error["error"]["code"] == "too_many_sessions"
        await client("DELETE", f"/v1/sessions/{first}")
        await client("POST", "/v1/sessions", {}, 201)

    use(fake_artifact, number, max_sessions=2)

    async def nbytes(client):
        session = (await client("POST", "/v1/sessions", {"prompt": IDS}, 201))["id"]
        await client("POST", f"/v1/sessions/{session}/fork", {}, 429)
        body = {"prompt": IDS, "session_id": session}
        await client("POST", "/v1/completions", body, 429)
        await client("POST", "/v1/sessions", {"prompt": IDS}, 429)
        assert await client.complete([7], session_id=session)

    use(fake_artifact, nbytes, session_bytes=640)

    now = [0.0]
    monkeypatch.setattr(session_jobs, "monotonic", lambda: now[0])

    async def idle(client):
        session = (await client("POST", "/v1/sessions", {"prompt": IDS}, 201))["id"]
        now[0] = 9.0
        await client("GET", f"/v1/sessions/{session}")
        now[0] = 18.0
        await client("GET", f"/v1/sessions/{session}")
        now[0] = 29.0
        await client("GET", f"/v1/sessions/{session}", status=404)

    use(fake_artifact, idle, session_idle=10)


def test_sessions_end_with_their_engine(fake_artifact):
    """The error names what may have happened."""
    with LLM(fake_artifact) as llm:
        jobs = session_jobs.SessionJobs(llm, None, ModelSettings(), print)  # type: ignore[arg-type]
        with pytest.raises(UnknownSessionError, match="ended with its engine"):
            jobs._find("sess-1", "")
