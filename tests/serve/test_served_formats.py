"""Calls of each family through the server: whole answers and streams."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from ingot.runtime.tokenizer import Tokenizer
from ingot.serve.http.app import build_app
from tests.conftest import SHAKESPEARE
from tests.runtime.answers import corpus, templates
from tests.support.asgi import Call, called
from tests.support.fake_engine import FakeEngine, FakeModels, says

# Of each family the answer with the most parts.
PARTS = {
    name: max(cases, key=lambda case: (len(case[1].calls), len(case[1].reasoning), len(case[0])))
    for name, cases in corpus.BY_TEMPLATE.items()
}


def ask(name: str, pieces: list[str], **fields: Any) -> Call:
    config = json.loads((SHAKESPEARE / "tokenizer_config.json").read_text())
    # The marks stand in a comment: no prompt has them.
    begin = "{% for m in messages %}{{ m.content }}{% endfor %}{{ tools }}"
    config["chat_template"] = f"{begin}{{# {templates.TEMPLATES[name]} #}}"
    engine = FakeEngine(says(*pieces))
    data = (SHAKESPEARE / "tokenizer.json").read_bytes()
    engine.tokenizer = Tokenizer(data, config, vocab_size=2048)
    body = {"messages": [{"role": "user", "content": "Go!"}], "tools": corpus.TOOLS, **fields}
    app = build_app(FakeModels(bard=engine))
    return asyncio.run(called(app, "POST", "/v1/chat/completions", body))


def said(message: Any) -> corpus.Said:
    calls = tuple(
        (each["function"]["name"], json.loads(each["function"]["arguments"]))
        for each in message.get("tool_calls") or ()
    )
    return corpus.Said(calls, message.get("content") or "", message.get("reasoning") or "")


@pytest.mark.parametrize("name", PARTS)
def test_an_answer_of_the_family(name: str):
    text, wanted = PARTS[name]
    call = ask(name, [text])
    (choice,) = call.json()["choices"]
    assert said(choice["message"]) == wanted
    assert choice["finish_reason"] == ("tool_calls" if wanted.calls else "stop")


@pytest.mark.parametrize("name", PARTS)
def test_a_stream_of_the_family(name: str):
    text, wanted = PARTS[name]
    call = ask(name, list(text), stream=True)
    message: dict[str, Any] = {"content": "", "reasoning": "", "tool_calls": []}
    reasons = []
    for event in call.body.decode().split("\n\n"):
        if not event.startswith("data: {"):
            continue
        for choice in json.loads(event.removeprefix("data: "))["choices"]:
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            message["reasoning"] += delta.get("reasoning") or ""
            reasons.append(choice.get("finish_reason"))
            for part in delta.get("tool_calls") or ():
                if part.get("id"):
                    assert part["index"] == len(message["tool_calls"])
                    name_of = part["function"]["name"]
                    call_of = {"function": {"name": name_of, "arguments": ""}}
                    message["tool_calls"].append(call_of)
                at = message["tool_calls"][part["index"]]
                at["function"]["arguments"] += part["function"].get("arguments") or ""
    assert said(message) == wanted
    assert [each for each in reasons if each] == ["tool_calls" if wanted.calls else "stop"]
