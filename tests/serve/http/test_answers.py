"""What answers hold: choices, usage, log-probabilities in all formats, echoes, token ids."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import pytest

from ingot.serve.engine import Job, Piece, Progress, Scored
from ingot.serve.http.app import app_of, build_app
from ingot.serve.openai.token_texts import TokenTexts
from ingot.serve.requests.context import ServerContext
from tests.support.asgi import called
from tests.support.fake_engine import (
    FACTS,
    FakeEngine,
    FakeModels,
    Script,
    Step,
    bundled_tokenizer,
    says,
)

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
GIVEN = {TEXT: {"prompt": "Hi"}, CHAT: {"messages": [{"role": "user", "content": "Hi"}]}}
TOKENIZER = bundled_tokenizer()
# The bytes of "é" are tokens of their own here.
HALVES = TOKENIZER.encode("é")


def ask(script: Script, path: str = TEXT, **fields: Any) -> Any:
    """The JSON of an answer."""
    app = build_app(FakeModels(bard=FakeEngine(script)))
    call = asyncio.run(called(app, "POST", path, {**GIVEN[path], **fields}))
    assert (call.status, call.headers["content-type"]) == (200, "application/json"), call.body
    return call.json()


def chunks(script: Script, path: str = TEXT, **fields: Any) -> list[Any]:
    """The choices of a stream's chunks."""
    app = build_app(FakeModels(bard=FakeEngine(script)))
    call = asyncio.run(called(app, "POST", path, {**GIVEN[path], **fields, "stream": True}))
    events = [part.removeprefix(b"data: ") for part in call.body.split(b"\n\n")[:-2]]
    return [choice for event in events for choice in json.loads(event)["choices"]]


def scored(job: Job) -> Iterable[Step]:
    """Two tokens with log-probabilities, the second of which is not among the likeliest."""
    prompt = job.token_ids
    first: list[Scored] = [(40, -0.25, 1, "H"), (41, -1.5, 2, "I")]
    second: list[Scored] = [(73, -4.0, 9, "i"), (40, -0.5, 1, "H"), (41, -1.0, 2, "I")]
    of_prompt: list[list[Scored] | None] | None = None
    if "prompt_logprobs" in job.params:
        of_prompt = [None, *([(token, -2.0, 1, None)] for token in prompt[1:])]
    if job.params["max_tokens"] == 0:
        yield Progress([Piece(0, "", [], [], "length")], True, prompt_logprobs=of_prompt)
        return
    pieces = [Piece(0, "H", [40], [first])]
    yield Progress(pieces, prompt_logprobs=of_prompt)
    yield Progress([Piece(0, "i", [73], [second], "length")], True)


def test_a_completion_and_its_usage() -> None:
    answer = ask(says("one ", "two", num_cached_tokens=2))
    assert answer["object"] == "text_completion" and answer["id"].startswith("cmpl-")
    assert answer["choices"] == [
        {
            "index": 0,
            "text": "one two",
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]
    assert answer["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 2,
        "total_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


def test_no_more_tokens_were_cached_than_the_prompt_has() -> None:
    # One that gave up its seat meanwhile finds its own tokens in the cache, too.
    usage = ask(says("a", num_cached_tokens=9))["usage"]
    assert (usage["prompt_tokens"], usage["prompt_tokens_details"]) == (2, {"cached_tokens": 2})


def test_a_chat_and_its_usage() -> None:
    answer = ask(says("one ", "two"), CHAT)
    assert answer["object"] == "chat.completion" and answer["id"].startswith("chatcmpl-")
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "one two", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]
    assert answer["usage"]["completion_tokens"] == 2


def test_choices_of_several_prompts_are_in_order() -> None:
    def script(job: Job) -> Iterable[Step]:
        name = TOKENIZER.decode(job.token_ids)
        yield Progress([Piece(1, f"{name}1", [1], None, "stop")])
        yield Progress([Piece(0, f"{name}0", [1], None, "stop")], True)

    answer = ask(script, prompt=["a", "b", "c"], n=2)
    assert [choice["index"] for choice in answer["choices"]] == list(range(6))
    assert [c["text"] for c in answer["choices"]] == ["a0", "a1", "b0", "b1", "c0", "c1"]
    assert answer["usage"]["prompt_tokens"] == 3  # a prompt counts once, however large n is
    streamed = chunks(script, prompt=["a", "b", "c"], n=2)
    texts = {choice["index"]: choice["text"] for choice in streamed}
    assert [texts[index] for index in range(6)] == ["a0", "a1", "b0", "b1", "c0", "c1"]


def test_log_probabilities_of_a_completion() -> None:
    (choice,) = ask(scored, logprobs=2)["choices"]
    assert choice["logprobs"] == {
        "tokens": ["H", "i"],
        "token_logprobs": [-0.25, -4.0],
        "top_logprobs": [{"H": -0.25, "I": -1.5}, {"i": -4.0, "H": -0.5, "I": -1.0}],
        "text_offset": [0, 1],
    }


def test_log_probabilities_of_a_chat() -> None:
    (choice,) = ask(scored, CHAT, logprobs=True, top_logprobs=2)["choices"]
    assert choice["logprobs"]["content"] == [
        {
            "token": "H",
            "logprob": -0.25,
            "bytes": [72],
            "top_logprobs": [
                {"token": "H", "logprob": -0.25, "bytes": [72]},
                {"token": "I", "logprob": -1.5, "bytes": [73]},
            ],
        },
        {
            "token": "i",
            "logprob": -4.0,
            "bytes": [105],
            "top_logprobs": [
                {"token": "H", "logprob": -0.5, "bytes": [72]},
                {"token": "I", "logprob": -1.0, "bytes": [73]},
            ],
        },
    ]


def test_log_probabilities_alone() -> None:
    (choice,) = ask(scored, CHAT, logprobs=True)["choices"]
    assert [each["top_logprobs"] for each in choice["logprobs"]["content"]] == [[], []]


@pytest.mark.parametrize("path, fields", [(TEXT, {"logprobs": 2}), (CHAT, {"logprobs": True})])
def test_streamed_log_probabilities_are_the_same(path: str, fields: dict[str, Any]) -> None:
    (whole,) = ask(scored, path, **fields)["choices"]
    parts = [c["logprobs"] for c in chunks(scored, path, **fields) if c["logprobs"]]
    joined = {name: [x for part in parts for x in part[name]] for name in parts[0]}
    assert joined == whole["logprobs"]


def test_an_impossible_token_has_a_number() -> None:
    def script(job: Job) -> Iterable[Step]:
        yield Progress([Piece(0, "H", [40], [[(40, float("-inf"), 1, "H")]], "stop")], True)

    (choice,) = ask(script, logprobs=1)["choices"]
    assert choice["logprobs"]["token_logprobs"] == [-9999.0]


def test_bytes_of_a_split_character_are_told() -> None:
    assert len(HALVES) == 2, "the bundled tokenizer has no token for é"

    def script(job: Job) -> Iterable[Step]:
        for token, text, end in ((HALVES[0], "", None), (HALVES[1], "é", "stop")):
            yield Progress([Piece(0, text, [token], [[(token, -1.0, 1, None)]], end)], bool(end))

    (choice,) = ask(script, CHAT, logprobs=True)["choices"]
    content = choice["logprobs"]["content"]
    assert bytes(byte for each in content for byte in each["bytes"]).decode() == "é"
    assert [each["token"] for each in content] == ["bytes:\\xc3", "bytes:\\xa9"]
    (choice,) = ask(script, logprobs=0)["choices"]
    assert choice["logprobs"]["text_offset"] == [0, 0]


def test_texts_begin_at_characters_not_bytes() -> None:
    pairs = [(HALVES[0], ""), (HALVES[1], "é"), (40, "H"), (73, "i")]

    def script(job: Job) -> Iterable[Step]:
        for token, text in pairs:
            yield Progress([Piece(0, text, [token], [[(token, -1.0, 1, None)]])])
        yield Progress([Piece(0, "", [], [], "stop")], True)

    (choice,) = ask(script, logprobs=0)["choices"]
    assert choice["text"] == "éHi"
    assert choice["logprobs"]["text_offset"] == [0, 0, 1, 2]


def test_lm_evaluation_harness_gets_what_it_reads() -> None:
    """As its `local-completions` asks, and as its `parse_logprobs` reads the answer."""
    prompts = [TOKENIZER.encode("To be, or not"), TOKENIZER.encode("Friends, Romans")]
    ends = (1, 2)  # where the contexts end, and what is scored begins
    answer = ask(
        scored, prompt=prompts, echo=True, logprobs=1, max_tokens=1, temperature=0, seed=1234
    )
    ordered = sorted(answer["choices"], key=lambda choice: choice["index"])
    for choice, end, prompt in zip(ordered, ends, prompts, strict=True):
        found = choice["logprobs"]
        scores = found["token_logprobs"][end:-1]
        tops = found["top_logprobs"][end:-1]
        assert len(found["tokens"]) == len(prompt) + 2
        assert found["token_logprobs"][0] is None and found["top_logprobs"][0] is None
        assert scores[: len(prompt) - end] == [-2.0] * (len(prompt) - end)
        for token, top in zip(found["tokens"][end:-1], tops, strict=True):
            assert token in top
        assert choice["text"] == TOKENIZER.decode(prompt) + "Hi"


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_alone_is_echoed(stream: bool) -> None:
    fields = {"prompt": "To be", "echo": True, "logprobs": 1, "max_tokens": 0}
    if stream:
        parts = chunks(scored, **fields)
        assert "".join(part["text"] for part in parts) == "To be"
        assert parts[-1]["finish_reason"] == "length"
        return
    answer = ask(scored, **fields)
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("To be", "length")
    tokens = [TOKENIZER.decode([token]) for token in TOKENIZER.encode("To be")]
    assert choice["logprobs"]["tokens"] == tokens
    assert "".join(tokens) == "To be"
    assert choice["logprobs"]["text_offset"][0] == 0
    assert answer["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize("further", [{}, {"logprobs": True, "return_token_ids": True}])
def test_of_a_chat_the_prompt_alone_may_be_read(further: dict[str, Any]) -> None:
    fields = {"max_completion_tokens": 0, **further}
    answer = ask(scored, CHAT, **fields)
    (choice,) = answer["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "length")
    assert answer["usage"]["completion_tokens"] == 0
    if further:
        assert (choice["token_ids"], choice["logprobs"]["content"]) == ([], [])
    parts = chunks(scored, CHAT, **fields)
    assert "".join(part["delta"].get("content") or "" for part in parts) == ""
    assert [part["finish_reason"] for part in parts if part["finish_reason"]] == ["length"]


def test_an_echo_begins_each_choice() -> None:
    answer = ask(says("!"), prompt="To be", echo=True, n=2)
    assert [choice["text"] for choice in answer["choices"]] == ["To be!", "To be!"]
    streamed = chunks(says("!"), prompt="To be", echo=True, n=2)
    for index in range(2):
        assert "".join(c["text"] for c in streamed if c["index"] == index) == "To be!"


def test_a_continued_message_is_echoed() -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "To be"}]
    fields = {"messages": messages, "continue_final_message": True, "echo": True}
    (choice,) = ask(says(", or"), CHAT, **fields)["choices"]
    assert choice["message"]["content"] == "To be, or"
    streamed = chunks(says(", or"), CHAT, **fields)
    assert "".join(c["delta"].get("content", "") for c in streamed) == "To be, or"


def test_prompt_log_probabilities_under_the_names_of_vllm() -> None:
    (choice,) = ask(scored, prompt=[40, 73], prompt_logprobs=1)["choices"]
    assert choice["prompt_logprobs"] == [
        None,
        {"73": {"logprob": -2.0, "rank": 1, "decoded_token": "i"}},
    ]
    answer = ask(scored, CHAT, prompt_logprobs=1)
    assert answer["prompt_logprobs"][0] is None and len(answer["prompt_logprobs"]) > 1


def test_token_ids_are_told() -> None:
    (choice,) = ask(says("a", "", "b"), prompt=[40, 73], return_token_ids=True)["choices"]
    assert (choice["token_ids"], choice["prompt_token_ids"]) == ([100, 101, 102], [40, 73])
    answer = ask(says("a", "", "b"), CHAT, return_token_ids=True)
    assert answer["choices"][0]["token_ids"] == [100, 101, 102]
    assert answer["prompt_token_ids"]
    streamed = chunks(says("a", "", "b"), CHAT, return_token_ids=True)
    assert [t for c in streamed for t in c.get("token_ids") or ()] == [100, 101, 102]
    streamed = chunks(says("a", "", "b"), return_token_ids=True)
    assert [t for c in streamed for t in c["token_ids"]] == [100, 101, 102]


def test_tokens_are_named_by_their_ids() -> None:
    (choice,) = ask(scored, logprobs=1, return_tokens_as_token_ids=True)["choices"]
    assert choice["logprobs"]["tokens"] == ["token_id:40", "token_id:73"]
    assert "token_id:40" in choice["logprobs"]["top_logprobs"][1]


@pytest.mark.parametrize("path", [TEXT, CHAT])
def test_a_stream_says_what_a_whole_answer_says(path: str) -> None:
    script = says("To ", "", "be", ", or", " not ☃", "!", reason="length")
    (whole,) = ask(script, path)["choices"]
    parts = chunks(script, path)
    text = "".join((c.get("delta") or c).get("content", c.get("text")) or "" for c in parts)
    assert text == (whole.get("message") or whole).get("content", whole.get("text"))
    assert parts[-1]["finish_reason"] == whole["finish_reason"]


def test_tokens_of_a_text_and_back() -> None:
    async def run() -> list[Any]:
        app = build_app(FakeModels(bard=FakeEngine(says("a"))))
        asked: list[tuple[str, dict[str, Any]]] = [
            ("/tokenize", {"prompt": "To be", "return_token_strs": True}),
            ("/tokenize", {"messages": [{"role": "user", "content": "To be"}]}),
            ("/detokenize", {"tokens": TOKENIZER.encode("To be")}),
            ("/tokenize", {}),
            ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "b"}]}),
            ("/detokenize", {"tokens": [FACTS.vocab_size]}),
        ]
        return [await called(app, "POST", *each) for each in asked]

    text, chat, back, *wrong = asyncio.run(run())
    ids = TOKENIZER.encode("To be")
    assert text.json() == {
        "count": len(ids),
        "max_model_len": 1024,
        "tokens": ids,
        "token_strs": [TOKENIZER.decode([token]) for token in ids],
    }
    rendered = TOKENIZER.apply_chat_template([{"role": "user", "content": "To be"}])
    assert TOKENIZER.decode(chat.json()["tokens"], False) == rendered
    assert back.json() == {"prompt": "To be"}
    assert [call.status for call in wrong] == [400] * 3
    assert [call.json()["error"]["param"] for call in wrong] == ["prompt", "prompt", "tokens"]


def test_special_tokens_are_spelled_unless_they_are_left_out() -> None:
    special = "<|endoftext|>"
    tokens = TOKENIZER.encode(f"a{special}")

    async def run() -> list[str]:
        app = build_app(FakeModels(bard=FakeEngine(says("a"))))
        found = []
        for given in ({}, {"skip_special_tokens": False}, {"skip_special_tokens": True}):
            call = await called(app, "POST", "/detokenize", {"tokens": tokens, **given})
            found.append(call.json()["prompt"])
        return found

    assert asyncio.run(run()) == [f"a{special}", f"a{special}", "a"]


def test_why_it_stopped_is_what_the_last_part_says() -> None:
    def script(job: Job) -> Iterable[Step]:
        yield Progress([Piece(0, "a", [1])])
        yield Progress([Piece(0, "b", [2], None, "stop", 7)], True)

    for path in (TEXT, CHAT):
        (choice,) = ask(script, path)["choices"]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", 7)


def test_what_a_user_says_is_not_echoed() -> None:
    (choice,) = ask(says("Yes"), CHAT, echo=True)["choices"]
    assert choice["message"]["content"] == "Yes"


def test_a_word_of_sentencepiece_has_its_space() -> None:
    class Words:
        def decode(self, tokens: list[int], skip: bool) -> str:
            return "word"

        def token(self, token: int) -> str:
            return ("word", "\u2581word")[token]

    texts = TokenTexts(Words())  # type: ignore[arg-type]
    assert [texts.text(token) for token in (0, 1)] == ["word", " word"]
    assert texts.data(1) == b" word"


def test_special_tokens_of_a_text_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(
        type(TOKENIZER), "encode", lambda self, text, special=True: asked.append(special) or [1]
    )

    async def run() -> None:
        app = build_app(FakeModels(bard=FakeEngine(says("a"))))
        for given in ({}, {"add_special_tokens": True}, {"add_special_tokens": False}):
            call = await called(app, "POST", "/tokenize", {"prompt": "x", **given})
            assert call.json()["tokens"] == [1]

    asyncio.run(run())
    assert asked == [True, True, False]


def test_models_are_listed() -> None:
    async def run() -> tuple[Any, Any]:
        app = build_app(FakeModels(bard=FakeEngine(says("a"))))
        many, one = [await called(app, "GET", f"/v1/models{name}") for name in ("", "/bard")]
        return many.json(), one.json()

    many, one = asyncio.run(run())
    assert many == {"object": "list", "data": [one]}
    assert one == {
        "id": "bard",
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "ingot",
        "root": "bard",
        "parent": None,
        "max_model_len": 1024,
        "capabilities": ["completion"],
    }


def test_health_says_which_model_is_not_ready() -> None:
    async def run() -> list[tuple[int, Any]]:
        models = FakeModels(bard=FakeEngine(says("a")))
        app = build_app(models)
        found = []
        for state in ("loaded", "unloaded", "loading", "failed", "loading"):
            models.num_restarts = len(found) // 4  # an engine that died, at the end
            models.states["bard"] = state
            call = await called(app, "GET", "/health")
            found.append((call.status, call.json()["models"]["bard"]))
            ready = await called(app, "GET", "/v2/health/ready")
            assert (ready.status, ready.json()) == (call.status, {"ready": call.status == 200})
        return found

    assert asyncio.run(run()) == [
        (200, "loaded"), (200, "unloaded"), (200, "loading"), (503, "failed"), (503, "loading")
    ]  # fmt: skip


def test_a_model_that_failed_keeps_no_requests_from_the_others() -> None:
    async def run() -> list[Any]:
        models = FakeModels(bard=FakeEngine(says("a")), poet=FakeEngine(says("b")))
        site = ServerContext(models=models, starting={"poet"})
        app = app_of(site)
        found = []
        for states in ({}, {}, {"bard": "failed"}, {"bard": "failed", "poet": "failed"}):
            models.states = states
            call = await called(app, "GET", "/health")
            each = [await called(app, "GET", "/health", query=f"model={n}") for n in models.engines]
            told = [(one.status, one.json()["status"]) for one in each]
            found.append((call.status, call.json()["status"], told))
            site.starting.clear()
        unknown = await called(app, "GET", "/health", query="model=nobody")
        return [*found, unknown.status]

    assert asyncio.run(run()) == [
        (503, "unready", [(200, "ok"), (503, "unready")]),
        (200, "ok", [(200, "ok"), (200, "ok")]),
        (200, "degraded", [(503, "unready"), (200, "ok")]),
        (503, "unready", [(503, "unready"), (503, "unready")]),
        404,
    ]
