"""Clients of all kinds, one after another, who bring back what they were told and much that is odd:
each is answered or refused in the API's form, and disturbs nobody."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from ingot.runtime.answers.formats import FORMATS
from ingot.runtime.answers.thoughts import SHELLS, THOUGHTS
from ingot.runtime.params import SamplingParams
from ingot.runtime.structured.compiler import GrammarCompiler
from ingot.runtime.tokenizer import Tokenizer
from ingot.serve.engine import Job, Piece, Progress
from ingot.serve.http.app import build_app
from ingot.serve.openai.requests import ChatRequest, CompletionRequest, TokenizeRequest
from tests.conftest import SHAKESPEARE
from tests.runtime.answers import corpus, templates
from tests.support.asgi import Call, called, calling
from tests.support.core import core
from tests.support.fake_engine import FakeEngine, FakeModels, Step

CHAT, TEXT, TOKENS = "/v1/chat/completions", "/v1/completions", "/tokenize"
KINDS = {CHAT: ChatRequest, TEXT: CompletionRequest, TOKENS: TokenizeRequest}
FAMILIES = sorted(templates.TEMPLATES)
PLAIN = {"prompt": "Who is there?", "max_tokens": 4, "seed": 1}

MARKS = sorted(
    {mark for row in FORMATS for mark in (row.example, *row.marks, row.begin, row.middle, row.end)}
    | {mark for row in THOUGHTS for mark in (row.begin, row.end)}
    | {mark for row in SHELLS for mark in (row.begin, row.end)}
)
ODD_TEXTS = [
    "",
    "\x00",
    "\ud800",
    "a\udfff",
    "🙂",
    "\u202e",
    "{{ 7*7 }}",
    '{"a": 1',
    "[DONE]",
    "data: ",
]
TEXTS = st.text(max_size=12) | st.sampled_from(MARKS) | st.sampled_from(ODD_TEXTS)
NUMBERS = st.integers(-3, 9) | st.sampled_from(
    [1e308, -1e308, float("nan"), float("inf"), 2**31, -(2**63), 2**64, 10**400, 0.5, -0.0]
)
WORDS = st.sampled_from(
    "bard user assistant tool system developer function text json_object json_schema required auto "
    "none low high regex add look_up object".split()
)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS | WORDS,
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from("role content type function name json text schema id $ref".split())
        | TEXTS,
        inner,
        max_size=3,
    ),
    max_leaves=6,
)  # fmt: skip
SCHEMAS = st.sampled_from([
    {"type": "object", "properties": {"a": {"type": "integer"}}},
    {"not": {}}, {"$ref": "#"}, {"enum": ["\ud800"]}, {"type": "string", "pattern": "("},
    {"minimum": 1e308}, {"maxLength": 10**30}, {"x-guidance": []}, {"format": "date"},
])  # fmt: skip
CALL = st.fixed_dictionaries({
    "id": st.sampled_from(["c1", "", "abcdefghi"]) | VALUES,
    "type": st.just("function"),
    "function": st.fixed_dictionaries({"name": WORDS | TEXTS, "arguments": TEXTS | VALUES}),
})  # fmt: skip
TOOLS = st.just(corpus.TOOLS) | VALUES | st.lists(
    st.fixed_dictionaries({
        "type": st.just("function"),
        "function": st.fixed_dictionaries({"name": WORDS | TEXTS}, optional={
            "parameters": SCHEMAS | VALUES}),
    }), max_size=2,
)  # fmt: skip
KNOWN = {
    "response_format": SCHEMAS.map(
        lambda schema: {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    ),
    "structured_outputs": SCHEMAS.map(lambda schema: {"json": schema}) | st.fixed_dictionaries({
        "grammar": TEXTS}) | st.fixed_dictionaries({"choice": st.lists(TEXTS, max_size=3)}),
    "stop": TEXTS | st.lists(TEXTS, max_size=4),
    "tools": TOOLS,
    "tool_choice": st.sampled_from(["auto", "none", "required"])
    | st.just({"type": "function", "function": {"name": "add"}}),
    "stream": st.booleans(),
    "stream_options": st.fixed_dictionaries({"include_usage": st.booleans() | VALUES}),
    "n": st.integers(0, 3),
    "reasoning_effort": WORDS,
    "chat_template_kwargs": st.dictionaries(TEXTS | st.just("enable_thinking"), VALUES, max_size=2),
    "max_thinking_tokens": st.integers(-1, 5),
    "logprobs": st.booleans() | st.integers(-1, 3),
    "echo": st.booleans(),
}  # fmt: skip
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "system", "developer"])},
    optional={
        "content": TEXTS | VALUES,
        "tool_calls": st.lists(CALL, max_size=2) | VALUES,
        "tool_call_id": TEXTS | VALUES,
        "reasoning": TEXTS | VALUES,
        "reasoning_content": TEXTS | VALUES,
        "name": TEXTS | VALUES,
    },
)


def odd_fields(path: str) -> st.SearchStrategy[dict[str, Any]]:
    """A few fields of a request, some as they should be and some not."""
    names = sorted({*KINDS[path].__struct_fields__} - {"messages", "prompt"})

    def field(name: str) -> st.SearchStrategy[tuple[str, Any]]:
        return st.tuples(st.just(name), KNOWN.get(name, VALUES) | VALUES)

    one = st.sampled_from(names).flatmap(field)
    usual = st.sampled_from(sorted({*KNOWN} & {*names}) or names).flatmap(field)
    return st.lists(one | usual, max_size=3).map(dict)


@cache
def tokenizer_of(family: str) -> Tokenizer:
    """The bundled tokenizer with a template that has the marks of a family."""
    config = json.loads((SHAKESPEARE / "tokenizer_config.json").read_text())
    begin = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ m.tool_calls }}{% endfor %}"
    config["chat_template"] = f"{begin}{{{{ tools }}}}{{# {templates.TEMPLATES[family]} #}}"
    return Tokenizer((SHAKESPEARE / "tokenizer.json").read_bytes(), config, vocab_size=2048)


class Clients(RuleBasedStateMachine):
    """A conversation that goes on, and others beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.messages: list[Any] = []
        self.says = ["Nay", "."]
        self.waits: asyncio.Event | None = None

    @initialize(family=st.sampled_from(FAMILIES))
    def start(self, family: str) -> None:
        self.engine = FakeEngine(self.script)
        self.engine.tokenizer = tokenizer_of(family)
        self.grammars = GrammarCompiler(lambda: self.engine.tokenizer, 2048, [0])
        self.app = build_app(FakeModels(bard=self.engine))
        self.first = self.plain()

    def script(self, job: Job) -> Iterable[Step]:
        """What an engine does: it judges the parameters, and writes."""
        params = SamplingParams(**job.params)
        if params.structured_outputs is not None:
            self.grammars.compile(params.structured_outputs)
        last = len(self.says) - 1
        for number, text in enumerate(self.says):
            if self.waits is not None and number == last:
                yield self.waits
            ends = "stop" if number == last else None
            pieces = [Piece(at, text, [7], None, ends) for at in range(params.n)]
            yield Progress(pieces, number == last)

    def ask(self, path: str, body: Any, method: str = "POST") -> Call:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        call = self.loop.run_until_complete(called(self.app, method, path, data))
        check(call)
        return call

    def plain(self) -> Any:
        call = self.ask(TEXT, PLAIN)
        assert call.status == 200
        return {**call.json(), "id": "", "created": 0}

    @rule(
        content=TEXTS,
        fields=odd_fields(CHAT),
        says=st.lists(TEXTS, min_size=1, max_size=4),
        stream=st.booleans(),
    )
    def talk(self, content: str, fields: dict[str, Any], says: list[str], stream: bool) -> None:
        """The next turn. Its answer comes back with the turn after it, and results of its calls."""
        self.says = [text.encode("utf-8", "replace").decode() for text in says]
        messages = [*self.messages, {"role": "user", "content": content}]
        call = self.ask(CHAT, {"messages": messages, "stream": stream, **fields})
        if call.status == 200 and not streams(call):
            answer = call.json()["choices"][0]["message"]
            results = [
                {"role": "tool", "tool_call_id": each["id"], "content": content}
                for each in answer.get("tool_calls") or ()
            ]
            self.messages = [*messages, answer, *results][-8:]

    @rule(family=st.sampled_from(sorted(corpus.BY_TEMPLATE)), stream=st.booleans())
    def call_a_tool(self, family: str, stream: bool) -> None:
        """An answer of any family, whichever the model is of."""
        cases = corpus.BY_TEMPLATE[family]
        self.says = list(cases[-1][0]) if stream else [cases[-1][0]]
        self.talk_plainly({"tools": corpus.TOOLS, "stream": stream})

    def talk_plainly(self, fields: dict[str, Any]) -> None:
        messages = [*self.messages, {"role": "user", "content": "Go!"}]
        call = self.ask(CHAT, {"messages": messages, **fields})
        assert call.status in (200, 400)
        if call.status == 200 and not streams(call):
            self.messages = [*messages, call.json()["choices"][0]["message"]][-8:]

    @rule(message=MESSAGE)
    def remember(self, message: Any) -> None:
        """A turn that a client made up, and that the following requests have in their history."""
        if self.ask(CHAT, {"messages": [*self.messages, message]}).status == 200:
            self.messages = [*self.messages, message][-8:]

    @rule(messages=st.lists(MESSAGE, max_size=3) | VALUES, fields=odd_fields(CHAT))
    def chat(self, messages: Any, fields: dict[str, Any]) -> None:
        self.ask(CHAT, {"messages": messages, **fields})

    @rule(prompt=TEXTS | VALUES, fields=odd_fields(TEXT))
    def complete(self, prompt: Any, fields: dict[str, Any]) -> None:
        self.ask(TEXT, {"prompt": prompt, **fields})

    @rule(fields=odd_fields(TOKENS))
    def tokenize(self, fields: dict[str, Any]) -> None:
        self.ask(TOKENS, {"messages": [*self.messages, {"role": "user", "content": "a"}], **fields})

    @rule(path=st.sampled_from(sorted(KINDS)), at=st.integers(0, 200), data=st.binary(max_size=4))
    def break_a_body(self, path: str, at: int, data: bytes) -> None:
        body = json.dumps({"messages": self.messages, "prompt": "a", "stop": ["\ud800"]}).encode()
        self.ask(path, body[:at] + data + body[at + len(data) :])

    @rule(path=st.sampled_from([CHAT, TEXT]), n=st.integers(1, 2))
    def leave(self, path: str, n: int) -> None:
        """A client that goes away while its answer is written."""
        self.loop.run_until_complete(self.leaves(path, n))

    async def leaves(self, path: str, n: int) -> None:
        self.says, self.waits = ["a", "b"], asyncio.Event()
        body = {"messages": [{"role": "user", "content": "Go!"}], "prompt": "Go!", "n": n}
        data = json.dumps({**body, "stream": True}).encode()
        async with calling(self.app, "POST", path, data) as call:
            await call.until(b"data: ")
            call.leave()
            self.waits.set()
        self.waits = None
        await self.engine.ended.wait()

    @rule(path=st.sampled_from(["/v1/models", "/v1/models/bard", "/v1/models/none", "/health"]))
    def look(self, path: str) -> None:
        self.ask(path, b"", "GET")

    def teardown(self) -> None:
        if hasattr(self, "first"):
            self.says, self.waits = ["Nay", "."], None
            assert self.plain() == self.first
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()


def check(call: Call) -> None:
    """An answer has the API's form, and so has a refusal."""
    assert call.status < 500, call.body
    if streams(call):
        *events, last, rest = call.body.decode().split("\n\n")
        assert (last, rest) == ("data: [DONE]", ""), call.body
        for event in events:
            assert isinstance(json.loads(event.removeprefix("data: ")), dict)
    elif call.status == 200:
        assert isinstance(call.json(), dict)
    else:
        assert set(call.json()["error"]) == {"message", "type", "param", "code"}, call.body


def streams(call: Call) -> bool:
    return call.headers.get("content-type", "").startswith("text/event-stream")


@pytest.mark.parametrize("cases", core(30, further=[200], slow=[2000]))
def test_clients_disturb_nobody(cases: int) -> None:
    run_state_machine_as_test(
        Clients,
        settings=settings(
            max_examples=cases,
            stateful_step_count=20,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize(
    ("status", "kind", "body"),
    [
        (500, "application/json", b'{"error": {}}'),
        (400, "application/json", b'{"error": {"message": ""}}'),
        (200, "application/json", b'"a"'),
        (200, "text/event-stream", b"data: {}\n\n"),
        (200, "text/event-stream", b'data: {}\n\ndata: [DONE]\n\ndata: {}\n\n'),
    ],
)  # fmt: skip
def test_the_check_finds_faults(status: int, kind: str, body: bytes) -> None:
    call = Call(status, {"content-type": kind}, [body], complete=True)
    with pytest.raises((AssertionError, ValueError)):
        check(call)
