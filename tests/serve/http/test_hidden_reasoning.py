"""Chats that leave reasoning out: its log-probabilities are left out with its text."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest

from ingot.runtime.tokenizer import Tokenizer
from ingot.serve.engine import Job, Piece, Progress
from ingot.serve.http.app import build_app
from tests.conftest import SHAKESPEARE
from tests.support.asgi import called
from tests.support.fake_engine import FakeEngine, FakeModels, Step

PATH = "/v1/chat/completions"
# Two styles of templates: the model opens its reasoning, or the prompt has done that.
OPENS = "{% for m in messages %}{{ m.content }}{% endfor %}{# </think> #}"
OPENED = "{% for m in messages %}{{ m.content }}{% endfor %}<think>\n{# </think> #}"
SIZES = (1, 2, 5, 1000)  # tokens of a piece


def tokenizer_of(template: str) -> Tokenizer:
    config = json.loads((SHAKESPEARE / "tokenizer_config.json").read_text())
    config["chat_template"] = template
    return Tokenizer((SHAKESPEARE / "tokenizer.json").read_bytes(), config, vocab_size=2048)


def pieces(tokenizer: Tokenizer, job: Job, tokens: Sequence[int], reason: str) -> Iterator[Piece]:
    """A piece for each token, as an engine gives them, for each completion of the job."""
    for index in range(job.params.get("n", 1)):
        texts = tokenizer.detokenizer(True, True, job.token_ids)
        for number, token in enumerate(tokens, start=1):
            text, last = texts.push(token), number == len(tokens)
            text += texts.finish(cut=reason == "length") if last else ""
            scores = [[(token, -float(number), 1, None)]]
            yield Piece(index, text, [token], scores, reason if last else None)


def joined(parts: Sequence[Piece]) -> Piece:
    scores = [each for part in parts for each in part.logprobs or []]
    return Piece(
        parts[0].index,
        "".join(part.text for part in parts),
        [token for part in parts for token in part.token_ids],
        scores,
        parts[-1].finish_reason,
    )


def choices(
    text: str,
    size: int,
    *,
    template: str = OPENS,
    reason: str = "stop",
    eos: bool = True,
    **asked: Any,
) -> list[Any]:
    """The choices of an answer that says the text, whose tokens come `size` at a time."""
    tokenizer = tokenizer_of(template)
    tokens = tokenizer.encode(text, add_special_tokens=False)
    if eos and reason == "stop":
        assert tokenizer.eos_token_id is not None
        tokens.append(tokenizer.eos_token_id)

    def script(job: Job) -> Iterable[Step]:
        parts = list(pieces(tokenizer, job, tokens, reason))
        by_index = [[p for p in parts if p.index == i] for i in range(job.params.get("n", 1))]
        for at in range(0, len(tokens), size):
            yield Progress(
                [joined(of[at : at + size]) for of in by_index], at + size >= len(tokens)
            )

    engine = FakeEngine(script)
    engine.tokenizer = tokenizer
    body = {"messages": [{"role": "user", "content": "Go!"}], "include_reasoning": False,
            "logprobs": True, "top_logprobs": 1, **asked}  # fmt: skip
    call = asyncio.run(called(build_app(FakeModels(bard=engine)), "POST", PATH, body))
    assert call.status == 200, call.body
    if not asked.get("stream"):
        return list(call.json()["choices"])
    events = [part.removeprefix(b"data: ") for part in call.body.split(b"\n\n")[:-2]]
    return [choice for event in events for choice in json.loads(event)["choices"]]


def told(text: str, size: int = 1000, **asked: Any) -> tuple[str, list[Any]]:
    """The content of an answer, and its log-probabilities, which are the same in a stream."""
    (whole,) = choices(text, size, **asked)
    found = choices(text, size, stream=True, **asked)
    content = "".join(each["delta"].get("content", "") for each in found)
    streamed = [one for each in found if each["logprobs"] for one in each["logprobs"]["content"]]
    assert content == (whole["message"]["content"] or "")
    assert streamed == whole["logprobs"]["content"]
    return content, streamed


def data(scores: Sequence[Any]) -> bytes:
    return bytes(byte for each in scores for byte in each["bytes"])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "text, content",
    [
        ("<think>\nHm, é.\n</think>\n\nYes, it is.", "Yes, it is."),
        ("<think>\nHm.\n</think>\n\né, so.", "é, so."),
        ("<think>Hm.</think>Yes.", "Yes."),
        ("<think></think>\n \n Yes </think> no", "Yes </think> no"),
        ("  So <think>it</think> is.", "  So <think>it</think> is."),
        ("<thi", "<thi"),
        ("é", "é"),
    ],
)
def test_content_and_its_log_probabilities_belong_together(
    text: str, content: str, size: int
) -> None:
    found, scores = told(text, size, eos=False)
    assert found == content
    # A token may hold the last of the space before the content as well.
    assert data(scores).decode().strip() == content.strip()
    assert len(data(scores)) <= len(content.encode()) + 1


@pytest.mark.parametrize("size", SIZES)
def test_the_prompt_may_have_opened_the_reasoning(size: int) -> None:
    found, scores = told("Hm.\n</think>\n\nYes.", size, template=OPENED, eos=False)
    assert (found, data(scores)) == ("Yes.", b"Yes.")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("reason", ["stop", "length"])
@pytest.mark.parametrize(
    "text", ["<think>\nHm, é", "<think>\nHm.\n</think>", "<think>a</think>\n\n"]
)
def test_reasoning_alone_has_none(text: str, reason: str, size: int) -> None:
    assert told(text, size, reason=reason) == ("", [])


@pytest.mark.parametrize("size", SIZES)
def test_what_ends_content_is_told_as_ever(size: int) -> None:
    plain = told("Yes.", size)[1]
    hidden = told("<think>Hm.</think>Yes.", size)[1]
    assert [each["token"] for each in hidden] == [each["token"] for each in plain]
    assert data(hidden) != b"Yes.", "the token of the end is among them"


def test_every_choice_has_its_own() -> None:
    found = choices("<think>Hm.</think>Yes.", 2, n=2, eos=False)
    assert [data(each["logprobs"]["content"]) for each in found] == [b"Yes.", b"Yes."]


@pytest.mark.parametrize("size", SIZES)
def test_reasoning_that_is_wanted_has_them(size: int) -> None:
    text = "<think>\nHm, é.\n</think>\n\nYes."
    scores = told(text, size, include_reasoning=True, eos=False)[1]
    assert data(scores).decode() == text


@pytest.mark.parametrize("size", SIZES)
def test_all_tokens_are_told_where_they_are_asked_for(size: int) -> None:
    text = "<think>Hm.</think>Yes."
    tokens = tokenizer_of(OPENS).encode(text, add_special_tokens=False)
    (whole,) = choices(text, size, eos=False, return_token_ids=True)
    assert whole["token_ids"] == tokens
    assert data(whole["logprobs"]["content"]) == b"Yes."
    found = choices(text, size, eos=False, return_token_ids=True, stream=True)
    assert [token for each in found for token in each.get("token_ids", ())] == tokens
