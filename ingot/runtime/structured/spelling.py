"""Spelling of a request's grammar as a text for llguidance."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ingot.errors import GrammarError
from ingot.runtime.structured.meanings import as_meant
from ingot.runtime.structured.outputs import StructuredOutputsParams
from ingot.runtime.structured.references import written_out
from ingot.runtime.structured.sizes import check_size
from ingot.runtime.structured.unsupported import check_keywords

# JSON on one line, or indented; not so much that a small model can lose itself in spaces.
WHITESPACE = r"( |\r?\n[ \t]{0,16})?"
ANY_OBJECT = '{"type":"object"}'

# The library turns GBNF into Lark in Python, in time that grows with the square of the rules.
MAX_GBNF_CHARS = 32 << 10
MAX_GBNF_RULES = 256


def spelled(outputs: StructuredOutputsParams, tags: Mapping[str, int]) -> str:
    """The grammar. Raises GrammarError for one that cannot be read; not all faults show here.

    A choice that spells one of the tokenizer's `tags` has that token.
    """
    from llguidance import LLMatcher

    if outputs.regex is not None:
        return LLMatcher.grammar_from_regex(outputs.regex)
    if outputs.choice is not None:
        texts = (literal(text, tags) for text in outputs.choice)
        return LLMatcher.grammar_from_lark(f"start: {' | '.join(texts)}")
    if outputs.grammar is not None:
        return LLMatcher.grammar_from_lark(as_lark(outputs.grammar))
    return _of_schema(outputs)


def literal(text: str, tags: Mapping[str, int]) -> str:
    """A text as a part of a rule of Lark, in which a tag that is a token is that token.

    The library would spell a mark such as `<tool_call>` in bytes, which models never write.
    """
    # The longest first: of alternatives, a regular expression takes the first that matches.
    marks = sorted(filter(text.__contains__, tags), key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, marks))})", text) if marks else [text]
    return " ".join(
        f"<[{tags[part]}]>" if part in tags else json.dumps(part, ensure_ascii=False)
        for part in parts
        if part
    )


def _of_schema(outputs: StructuredOutputsParams) -> str:
    from llguidance import LLMatcher

    schema = ANY_OBJECT if outputs.json is None else str(outputs.json)
    if outputs.disable_additional_properties:
        schema = json.dumps(_closed(json.loads(schema)), ensure_ascii=False)
    parsed = json.loads(schema)
    check_keywords(parsed, schema)
    check_size(parsed)
    if '"oneOf"' in schema:
        parsed = written_out(parsed)
    schema = json.dumps(as_meant(parsed), ensure_ascii=False)
    defaults: Any = {"whitespace_pattern": WHITESPACE}
    overrides: Any = {}
    if outputs.disable_any_whitespace:
        defaults, overrides = {}, {"whitespace_flexible": False}
    elif outputs.whitespace_pattern is not None:
        overrides = {"whitespace_pattern": outputs.whitespace_pattern}
    return LLMatcher.grammar_from_json_schema(schema, defaults, overrides)


def as_lark(grammar: str) -> str:
    """A grammar in Lark's syntax. Raises GrammarError for GBNF that is not valid."""
    if _is_lark(grammar):
        return grammar
    num_rules = grammar.count("::=")
    if len(grammar) > MAX_GBNF_CHARS or num_rules > MAX_GBNF_RULES:
        raise GrammarError(
            f"structured_outputs.grammar is GBNF of {len(grammar)} characters and {num_rules} "
            "rules",
            hint=f"At most {MAX_GBNF_CHARS} and {MAX_GBNF_RULES} are taken; larger grammars can "
            "be written in Lark's syntax.",
        )
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return gbnf_to_lark(grammar)
    except Exception as error:
        raise GrammarError(
            f"structured_outputs.grammar is not valid: {error!s:.300}",
            hint="Give a Lark grammar with a rule `start:`, or GBNF with a rule `root ::=`.",
        ) from error


def _is_lark(grammar: str) -> bool:
    lines = (line.lstrip() for line in grammar.splitlines())
    return any(
        line.startswith("%llguidance")
        or (line.startswith("start") and line.removeprefix("start").lstrip().startswith(":"))
        for line in lines
        if "::=" not in line
    )


def _closed(schema: Any) -> Any:
    """A schema whose objects take no properties but those that are listed."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    closed = {name: _closed(value) for name, value in schema.items()}
    if schema.get("type") == "object" or "properties" in schema:
        closed.setdefault("additionalProperties", False)
    return closed
