"""Forms in which tags are tokens: the model's one token is allowed, and no other spelling."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from llguidance import LLTokenizer
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from ingot.runtime.answers import structured_outputs, style_of
from ingot.runtime.structured.compiler import GrammarCompiler
from ingot.runtime.structured.guide import Guide
from ingot.runtime.structured.outputs import StructuredOutputsParams
from ingot.runtime.tokenizer import Tokenizer
from tests.runtime.fake_tokenizer import byte_level

TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
END = 319
CALL = '<tool_call>\n{"name": "weather", "arguments": {"unit": "C"}}\n</tool_call>'
ANSWER = '{"unit": "<tool_call>"}'
SCHEMA = {
    "type": "object",
    "properties": {"unit": {"type": "string"}},
    "required": ["unit"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}


@cache
def tokenizer() -> Tokenizer:
    """With tags as Qwen has them: added, and not special."""
    backend = Backend.from_str(byte_level().to_str())
    backend.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    return Tokenizer(backend.to_str().encode())


def tokens(text: str, *, spells: tuple[str, ...] = ()) -> list[int]:
    """The tokens of a text, in which tags are tokens but for these."""
    for tag in spells:
        if tag in text:
            parts = text.split(tag)
            spelled = [i for char in tag for i in tokens(char)]
            found = tokens(parts[0], spells=spells)
            for part in parts[1:]:
                found += spelled + tokens(part, spells=spells)
            return found
    return tokenizer().encode(text, add_special_tokens=False)


def takes(form: dict[str, Any] | None, token_ids: list[int]) -> bool:
    """Whether these tokens, and no more, have the form."""
    assert form is not None
    size = tokenizer().backend.get_vocab_size()
    grammar = GrammarCompiler(tokenizer, size, [END]).compile(StructuredOutputsParams(**form))
    matcher = grammar.matcher()
    if matcher.validate_tokens(token_ids) < len(token_ids):
        return False
    guide = Guide(grammar)
    return guide.ends(token_ids, 0) and guide.error is None


def form(template: str, prompt: str = "x", **asked: Any) -> dict[str, Any] | None:
    return structured_outputs(style_of(template, tags=tokenizer().tags), prompt, **asked)


@pytest.mark.parametrize("choice", ["required", {"function": {"name": "weather"}}])
def test_a_call_that_is_asked_for_begins_and_ends_with_its_tokens(choice):
    asked = form(TAGS[2], tools=TOOLS, tool_choice=choice, parallel_tool_calls=False)
    assert takes(asked, tokens(CALL))
    assert not takes(asked, tokens(CALL, spells=("<tool_call>",)))
    assert not takes(asked, tokens(CALL, spells=("</tool_call>",)))


def test_several_calls_have_their_tokens_between_them():
    asked = form(TAGS[2], tools=TOOLS, tool_choice="required")
    matcher = GrammarCompiler(tokenizer, tokenizer().backend.get_vocab_size(), [END]).compile(
        StructuredOutputsParams.of(asked)
    ).matcher()  # fmt: skip
    both = tokens(f"{CALL}\n{CALL}")
    assert matcher.validate_tokens(both) == len(both)


@pytest.mark.parametrize("prompt", ["x", "x<think>\n"])
def test_reasoning_ends_with_its_token_alone(prompt):
    asked = form("</think>", prompt, response_format=FORM)
    begin = "" if prompt.endswith("<think>\n") else "<think>"
    spelled = tokens(f"{begin}I write ") + tokens("</think>", spells=("</think>",))
    answer = tokens(ANSWER, spells=TAGS)
    assert takes(asked, spelled + tokens(" soon.</think>\n") + answer)
    assert not takes(asked, spelled + answer)
    assert not takes(asked, tokens(f"{begin}I write </think> soon.</think>\n") + answer)


@pytest.mark.parametrize("tag", TAGS)
def test_a_string_of_an_answer_spells_tags_and_has_none(tag):
    asked = {"json": SCHEMA}
    text = ANSWER.replace("<tool_call>", tag)
    assert takes(asked, tokens(text, spells=TAGS))
    assert not takes(asked, tokens(text))


def test_a_choice_that_spells_a_tag_has_it():
    asked = {"choice": ["<think>yes</think>", "no</thin"]}
    assert takes(asked, tokens("<think>yes</think>"))
    assert takes(asked, tokens("no</thin"))
    assert not takes(asked, tokens("<think>yes</think>", spells=("<think>",)))


def test_a_grammar_names_a_tag_without_quotes():
    asked = {"grammar": "start: <think> /[a-z]+/ </think>"}
    assert takes(asked, tokens("<think>yes</think>"))
    assert not takes(asked, tokens("<think>yes</think>", spells=TAGS))


def test_tags_are_the_tokens_that_grammars_take_for_no_text():
    backend = Backend.from_str(byte_level().to_str())
    odd = ["[ARGS]", "\n\n", "<td>", "<|x|>", "<open", "close>", "words", "<a b>"]
    backend.add_tokens([AddedToken(each, special=False, normalized=False) for each in odd])
    backend.add_special_tokens([AddedToken("[SPECIAL]", special=True)])
    ours = Tokenizer(backend.to_str().encode())
    library = LLTokenizer(backend.to_str(), n_vocab=backend.get_vocab_size(), eos_token=END)
    added = backend.get_added_tokens_decoder()
    assert set(ours.tags.values()) == {i for i in added if library.is_special_token(i)}
    assert {"<td>", "<|x|>", "[SPECIAL]"} <= ours.tags.keys()
    assert not {"[ARGS]", "\n\n", "words"} & ours.tags.keys()
