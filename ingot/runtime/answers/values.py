"""The arguments of calls, read in the notations of models and written as JSON."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ingot.runtime.answers.coming import (
    DIGITS,
    MAX_DEPTH,
    SPACE,
    Broken,
    Coming,
    Cut,
    Marks,
    Reading,
    marks_of,
)
from ingot.runtime.answers.schemas import kinds, parameter

MAX_KEY = 256
MAX_NUMBER = 512
BEHIND_STRINGS = f",:=)]}}{SPACE}"
WORDS: Mapping[str, str] = {
    "true": "true", "false": "false", "null": "null",
    "True": "true", "False": "false", "None": "null",
}  # fmt: skip
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_BARE_KEY = re.compile(r"[\w$.\-]+")
_ESCAPED = {
    each: json.dumps(text)[1:-1]
    for each, text in {
        "n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0",
        "'": "'", '"': '"', "\\": "\\", "/": "/", "\n": "",
    }.items()
}  # fmt: skip
_HEX = re.compile("[0-9a-fA-F]+")
_CODES = {"x": 2, "u": 4, "U": 8}


@dataclass(frozen=True, slots=True)
class Json:
    """Arguments that are an object of JSON: they stay as they were written."""

    marks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tagged:
    """Arguments in tags, with values that are quoted by them alone.

    Attributes:
        key: what stands before and after the name of an argument.
        value: what stands before and after its value.
        lines: a value stands on lines of its own.
        told: what stands between a name and `true` or `false`: whether the value is a string.
        closes: any of these ends the arguments.
    """

    key: tuple[str, str]
    value: tuple[str, str]
    closes: tuple[str, ...]
    lines: bool = False
    told: str = ""

    @property
    def marks(self) -> tuple[str, ...]:
        return tuple(filter(None, (*self.key, *self.value, *self.closes)))

    @property
    def ends(self) -> tuple[str, ...]:
        """What may end a value."""
        end = self.value[1]
        return (f"\n{end}", end) if self.lines else (end,)


@dataclass(frozen=True, slots=True)
class Literals:
    """Arguments as names and literals, such as `a=1, b="x"` or `a:1,b:<|"|>x<|"|>`.

    Attributes:
        assign: what stands between a name and its value.
        closing: what ends them.
        quote: a mark around strings in which nothing is escaped.
        comma: what is written between two, when a call is asked for.
    """

    assign: str
    closing: str
    quote: str = ""
    comma: str = ", "

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.quote,) if self.quote else ()


Notation = Json | Tagged | Literals
JSON = Json()


class ArgumentReader(Protocol):
    """Reads the arguments of one call."""

    def read(self) -> Reading[None]:
        """Passes them. Raises Broken where they are none."""

    def written(self, passed: str) -> str:
        """The JSON for the text that was passed since this was asked for."""


def reader_of(notation: Notation, coming: Coming, schema: Mapping[str, Any]) -> ArgumentReader:
    """Reads arguments of a tool that have this schema."""
    if isinstance(notation, Json):
        return _JsonReader(coming)
    if isinstance(notation, Tagged):
        return _TaggedReader(coming, notation, schema)
    return _LiteralReader(coming, notation)


class _JsonReader:
    def __init__(self, coming: Coming) -> None:
        self._coming = coming

    def read(self) -> Reading[None]:
        if (yield from self._coming.peek()) != "{":
            raise self._coming.wrong("{")
        yield from self._coming.json()

    def written(self, passed: str) -> str:
        return passed


class _Rewriter:
    """Writes JSON for what it passes. What was passed may be taken whenever more is needed: so it
    keeps no places in the text, and writes in one go what it passes in one go."""

    def __init__(self, coming: Coming) -> None:
        self.coming = coming
        self.out: list[str] = []

    def written(self, passed: str) -> str:
        text = "".join(self.out)
        self.out.clear()
        return text

    def string_until(self, ends: Marks) -> Reading[None]:
        """Passes text up to one of these marks and the mark; writes it as a string."""
        coming = self.coming
        self.out.append('"')
        while (found := ends.find(coming.text, coming.at)) is None:
            self._pass_string(ends.half(coming.text, coming.at))
            if coming.ended:
                raise Cut
            yield
        self._pass_string(found.start())
        coming.at += len(found.group())
        self.out.append('"')

    def text_until(self, ends: Marks, most: int | None = None) -> Reading[str]:
        """Passes text up to one of these marks, and the mark; the text."""
        coming, ahead = self.coming, 0
        while (found := ends.find(coming.text, coming.at + ahead)) is None:
            ahead = ends.half(coming.text, coming.at) - coming.at
            if most is not None and ahead > most:
                raise Broken
            if coming.ended:
                raise Cut
            yield
        text = coming.text[coming.at : found.start()]
        if most is not None and len(text) > most:
            raise Broken
        coming.at = found.end()
        return text

    def _pass_string(self, end: int) -> None:
        coming = self.coming
        self.out.append(_escaped(coming.text[coming.at : end]))
        coming.at = end


class _TaggedReader(_Rewriter):
    def __init__(self, coming: Coming, form: Tagged, schema: Mapping[str, Any]) -> None:
        super().__init__(coming)
        self._form, self._schema = form, schema

    def read(self) -> Reading[None]:
        form, coming, before = self._form, self.coming, "{"
        begin, end = form.key
        while True:
            yield from coming.skip_space()
            if (yield from coming.expect(begin, *form.closes)) != begin:
                break
            name = (yield from self.text_until(marks_of(end), MAX_KEY)).strip(SPACE)
            if form.value[0]:
                yield from coming.skip_space()
                yield from coming.expect(form.value[0])
            found = kinds(parameter(self._schema, name), self._schema)
            if form.told and form.told in name:
                name, _, is_string = name.rpartition(form.told)
                found = frozenset({"string" if is_string == "true" else "object"})
            self.out.append(f"{before}{json.dumps(name, ensure_ascii=False)}: ")
            before = ", "
            yield from self._value(found)
        self.out.append("{}" if before == "{" else "}")

    def _value(self, found: frozenset[str]) -> Reading[None]:
        coming, ends = self.coming, self._form.ends
        if self._form.lines:
            yield from coming.starts_with("\n")
        if "string" not in found:
            self.out.append(value_of((yield from self.text_until(marks_of(*ends))), found))
            return
        if "null" in found:
            nothing = [f"{word}{end}" for word in ("null", "None") for end in ends]
            if (yield from coming.first_of(nothing)):
                self.out.append("null")
                return
        yield from self.string_until(marks_of(*ends))


class _LiteralReader(_Rewriter):
    def __init__(self, coming: Coming, form: Literals | None = None) -> None:
        super().__init__(coming)
        self._form = form or Literals("", "")

    def read(self) -> Reading[None]:
        yield from self._members(self._form.assign, self._form.closing, 1)

    def value(self, depth: int = 0) -> Reading[None]:
        """Passes one value."""
        coming, quote = self.coming, self._form.quote
        char = yield from coming.peek()
        if char in ("{", "[", "(") and depth == MAX_DEPTH:
            raise Broken
        if char == "{":
            coming.at += 1
            yield from self._members(":", "}", depth + 1)
        elif char in ("[", "("):
            coming.at += 1
            yield from self._items("]" if char == "[" else ")", depth + 1)
        elif char in ("'", '"'):
            yield from self._quoted(char)
        elif quote and (yield from coming.starts_with(quote)):
            yield from self.string_until(marks_of(quote))
        elif word := (yield from coming.first_of(WORDS)):
            self.out.append(WORDS[word])
        else:
            yield from self._number()

    def _members(self, assign: str, closing: str, depth: int) -> Reading[None]:
        coming, before = self.coming, "{"
        yield from coming.skip_space()
        while not (yield from coming.starts_with(closing)):
            self.out.append(before)
            yield from self._key(assign)
            self.out.append(": ")
            yield from coming.skip_space()
            yield from self.value(depth)
            before = ", "
            yield from self._next(closing)
        self.out.append("{}" if before == "{" else "}")

    def _items(self, closing: str, depth: int) -> Reading[None]:
        coming, before = self.coming, "["
        yield from coming.skip_space()
        while not (yield from coming.starts_with(closing)):
            self.out.append(before)
            yield from self.value(depth)
            before = ", "
            yield from self._next(closing)
        self.out.append("[]" if before == "[" else "]")

    def _next(self, closing: str) -> Reading[None]:
        """Passes a comma, unless the end comes."""
        coming = self.coming
        if (yield from coming.skip_space()) == ",":
            coming.at += 1
            yield from coming.skip_space()
        elif not coming.text.startswith(closing, coming.at):
            raise coming.wrong(closing)

    def _key(self, assign: str) -> Reading[None]:
        """Passes a name, and what stands between it and its value."""
        coming, quote = self.coming, self._form.quote
        char = yield from coming.peek()
        if char in ("'", '"'):
            yield from self._quoted(char)
        elif quote and (yield from coming.starts_with(quote)):
            yield from self.string_until(marks_of(quote))
        else:
            name = yield from self._bare_key(assign)
            self.out.append(json.dumps(name, ensure_ascii=False))
        yield from coming.skip_space()
        yield from coming.expect(assign)

    def _bare_key(self, assign: str) -> Reading[str]:
        coming, size = self.coming, 0
        while True:
            rest = yield from coming.ahead(size + 1)
            if not _BARE_KEY.fullmatch(rest) or len(rest) == size or size > MAX_KEY:
                break
            size += 1
        name = rest[:size]
        if not name or size > MAX_KEY:
            raise coming.wrong()
        coming.at += size
        return name

    def _quoted(self, quote: str) -> Reading[None]:
        """Passes a string with escapes as Python has them; line ends may stand in it.

        A quote before a letter is part of it: templates print `'it's'`, and models learn that.
        """
        coming, ends = self.coming, marks_of(quote, "\\")
        coming.at += 1
        self.out.append('"')
        while char := (yield from coming.peek()):
            if char == "\\":
                yield from self._escape()
            elif char == quote:
                behind = (yield from coming.ahead(2))[1:]
                if not behind or behind in BEHIND_STRINGS:
                    break
                self._pass_string(coming.at + 1)
            else:
                found = ends.find(coming.text, coming.at)
                self._pass_string(found.start() if found else len(coming.text))
        else:
            raise Cut
        coming.at += 1
        self.out.append('"')

    def _escape(self) -> Reading[None]:
        coming = self.coming
        char = (yield from coming.ahead(2))[1:]
        size = 2 + _CODES.get(char, 0)
        text = yield from coming.ahead(size)
        if len(text) < size:
            raise Cut
        if char in _CODES:
            self.out.append(_of_code(text[2:]))
        else:
            self.out.append(_ESCAPED[char] if char in _ESCAPED else _escaped(text))
        coming.at += size

    def _number(self) -> Reading[None]:
        coming, size = self.coming, 0
        while (rest := (yield from coming.ahead(size + 1))) and len(rest) > size:
            if rest[-1] not in f"+-.eE{DIGITS}" or size == MAX_NUMBER:
                break
            size += 1
        else:
            raise Cut
        if not _NUMBER.fullmatch(rest[:size]):
            raise Broken
        self.out.append(rest[:size])
        coming.at += size


def value_of(text: str, found: frozenset[str]) -> str:
    """The JSON of a value that was written without quotes; a string where it is no other value.

    `found` are the types that it may have; where there are any, words and lists of Python are
    taken, too, since templates print values so.
    """
    plain = text.strip(SPACE)
    if _is_whole(whole := _ended(plain), whole.json()):
        return plain
    if found:
        reader = _LiteralReader(_ended(plain))
        # A number needs something behind it, and is JSON anyway.
        if _is_whole(reader.coming, reader.value()):
            return "".join(reader.out)
    return json.dumps(text, ensure_ascii=False)


def _ended(text: str) -> Coming:
    coming = Coming()
    coming.text, coming.ended = text, True
    return coming


def _is_whole(coming: Coming, reading: Reading[Any]) -> bool:
    """Returns whether all of an ended text is what is read."""
    try:
        next(reading, None)
    except Broken:
        return False
    return coming.at == len(coming.text)


def _of_code(digits: str) -> str:
    """A character of JSON for the digits of its code."""
    if not _HEX.fullmatch(digits) or (code := int(digits, 16)) > sys.maxunicode:
        raise Broken
    return f"\\u{code:04x}" if code < 1 << 16 else json.dumps(chr(code))[1:-1]


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
