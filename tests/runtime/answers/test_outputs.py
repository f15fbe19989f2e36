"""What outputs of chats in Python say: whole, growing, and piece by piece."""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from ingot.errors import RequestError
from ingot.runtime.answers import style_of
from ingot.runtime.answers.outputs import ChatOutputs
from ingot.runtime.output import CompletionOutput, RequestOutput
from ingot.runtime.params import RequestOutputKind, SamplingParams
from ingot.runtime.tokenizer import Tokenizer
from tests.runtime.answers import corpus, templates
from tests.runtime.fake_tokenizer import byte_level

EOS = 319
PROMPT = {"prompt": "Go!", "prompt_token_ids": [1]}
# Of each family the answer with the most parts.
PARTS = {
    name: max(cases, key=lambda case: (len(case[1].calls), len(case[1].reasoning), len(case[0])))
    for name, cases in corpus.BY_TEMPLATE.items()
}


@cache
def tokenizer(*special: str) -> Tokenizer:
    """A character is a token or several; these texts are tokens that no text shows."""
    backend = Backend.from_str(byte_level().to_str())
    backend.add_special_tokens(
        [AddedToken(each, special=True, normalized=False) for each in special]
    )
    return Tokenizer(backend.to_str().encode())


def chat(name: str, special: tuple[str, ...] = (), **params: Any) -> ChatOutputs:
    found = tokenizer(*special)
    style = style_of(templates.TEMPLATES[name], tags=found.tags, hidden_tags=found.hidden_tags)
    return ChatOutputs(style, PROMPT, corpus.TOOLS, SamplingParams(**params), found)


def output(text: str, token_ids: list[int], reason: Any = None, stop: Any = None) -> RequestOutput:
    one = CompletionOutput(
        index=0, text=text, token_ids=token_ids, finish_reason=reason, stop_reason=stop
    )
    return RequestOutput(
        request_id="0", prompt=None, prompt_token_ids=[1], outputs=[one], finished=bool(reason)
    )


def said(given: CompletionOutput) -> corpus.Said:
    assert all(call.type == "function" and call.id for call in given.tool_calls)
    calls = tuple((c.function.name, json.loads(c.function.arguments)) for c in given.tool_calls)
    return corpus.Said(calls, given.content or "", given.reasoning or "")


@pytest.mark.parametrize("name", PARTS)
def test_a_whole_output_tells_what_it_says(name: str) -> None:
    text, wanted = PARTS[name]
    (told,) = chat(name, skip_special_tokens=False).read(output(text, [5, EOS], "stop")).outputs
    assert said(told) == wanted
    assert (told.text, told.token_ids, told.finish_reason) == (text, [5, EOS], "stop")


@pytest.mark.parametrize("name", PARTS)
def test_marks_that_the_text_lacks_are_read_from_its_tokens(name: str) -> None:
    """Also where the tokens come one by one: the text is what it was."""
    text, wanted = PARTS[name]
    style = style_of(templates.TEMPLATES[name])
    assert style.format is not None
    marks = {mark for mark in style.format.tags() if len(mark) > 3 and "\n" not in mark}
    marks |= {mark for mark in style.thought.tags() if "\n" not in mark} if style.thought else set()
    marks |= {style.shell.begin, style.shell.end} if style.shell else set()
    special = tuple(sorted(marks))
    found = tokenizer(*special)
    token_ids = found.encode(text, add_special_tokens=False)
    visible = found.decode(token_ids)
    whole = chat(name, special).read(output(visible, [*token_ids, EOS], "stop")).outputs[0]
    assert (said(whole), whole.text) == (wanted, visible)
    growing = chat(name, special)
    for end in range(len(token_ids)):
        (told,) = growing.read(output(visible, token_ids[:end])).outputs
    (told,) = growing.read(output(visible, [*token_ids, EOS], "stop")).outputs
    assert said(told) == wanted


@pytest.mark.parametrize("name", PARTS)
def test_growing_outputs_and_deltas_agree(name: str) -> None:
    text, wanted = PARTS[name]
    growing, pieces = (
        chat(name, skip_special_tokens=False, output_kind=kind)
        for kind in (RequestOutputKind.CUMULATIVE, RequestOutputKind.DELTA)
    )
    seen, deltas = [], []
    for end in range(1, len(text) + 1):
        reason = "stop" if end == len(text) else None
        seen += growing.read(output(text[:end], [0] * end, reason)).outputs
        deltas += pieces.read(output(text[end - 1], [0], reason)).outputs
    assert said(seen[-1]) == wanted
    for former, later in pairwise(seen):
        assert (later.content or "").startswith(former.content or "")
        assert (later.reasoning or "").startswith(former.reasoning or "")
        assert len(later.tool_calls) >= len(former.tool_calls)
    assert "".join(each.content or "" for each in deltas) == wanted.content
    assert "".join(each.reasoning or "" for each in deltas) == wanted.reasoning
    assert [bool(each.tool_calls) for each in deltas[:-1]] == [False] * (len(deltas) - 1)
    assert said(deltas[-1]).calls == wanted.calls


def test_a_stop_string_ends_what_is_read_from_tokens() -> None:
    special = ("[THINK]", "[/THINK]")
    found = tokenizer(*special)
    token_ids = found.encode("[THINK]Well[/THINK]Yes. END of it", add_special_tokens=False)
    stopped = output("WellYes. ", token_ids, "stop", "END")
    (told,) = chat("mistral", special, stop=["END"]).read(stopped).outputs
    assert (told.reasoning, told.content) == ("Well", "Yes. ")


@pytest.mark.parametrize(("more", "content"), [(0, "Yes. "), (1, "Yes. END")])
def test_stop_strings_count_from_the_last_token_that_there_must_be(more: int, content: str) -> None:
    special = ("[THINK]", "[/THINK]")
    token_ids = tokenizer(*special).encode("[THINK]Well[/THINK]Yes. END", add_special_tokens=False)
    params = {"stop": ["END"], "min_tokens": len(token_ids) + more}
    (told,) = chat("mistral", special, **params).read(output("", token_ids, "length")).outputs
    assert told.content == content


def test_an_output_that_is_told_again_says_the_same() -> None:
    for kind in (RequestOutputKind.CUMULATIVE, RequestOutputKind.DELTA):
        read = chat("hermes", skip_special_tokens=False, output_kind=kind)
        first = read.read(output("Yes.", [5], "stop")).outputs[0]
        again = read.read(output("Yes.", [5], "stop")).outputs[0]
        assert first.content == "Yes."
        assert again.content == ("Yes." if kind is RequestOutputKind.CUMULATIVE else "")


def test_a_bound_is_a_parameter_and_refused_where_nothing_marks_reasoning() -> None:
    style = style_of("</think>", hidden_tags=["</think>"])
    params = SamplingParams(top_k=3)
    bounded = ChatOutputs(style, PROMPT, None, params, tokenizer(), 5).params
    assert bounded.reasoning is not None and bounded.reasoning.max_tokens == 5
    assert (bounded.top_k, bounded.skip_special_tokens) == (3, False)
    assert ChatOutputs(style, PROMPT, None, params, tokenizer()).params is params
    with pytest.raises(RequestError, match="marks no reasoning"):
        ChatOutputs(style_of(""), PROMPT, None, params, tokenizer(), 5)


def test_without_texts_there_is_nothing_to_read() -> None:
    (told,) = chat("hermes", detokenize=False).read(output("", [5], "length")).outputs
    assert (told.content, told.reasoning, told.tool_calls) == (None, None, [])
