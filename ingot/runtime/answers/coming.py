"""A text that comes piece by piece, and JSON in it.

What reads it is a generator: it yields where it needs more text. So it may stop within anything,
and finds the same however the text is cut. Each reading moves behind what it has read.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable
from functools import cache
from typing import TypeVar

T = TypeVar("T")
Reading = Generator[None, None, T]

SPACE = " \t\r\n"
DIGITS = "0123456789"
MAX_DEPTH = 64
MAX_SPACE = 64  # white space that waits for what follows it
_ESCAPES = '"\\/bfnrt'
_HEX = "0123456789abcdefABCDEF"
_WORDS = {"t": "true", "f": "false", "n": "null"}


class Broken(Exception):
    """The text is not what was to be read."""


class Cut(Broken):
    """The text has ended within what was to be read."""


class Marks:
    """Marks, any of which may come next in a text."""

    def __init__(self, marks: Iterable[str]) -> None:
        longest_first = sorted({*marks}, key=len, reverse=True)
        self._search = re.compile("|".join(map(re.escape, longest_first))).search
        firsts = "".join(sorted({re.escape(mark[0]) for mark in longest_first}))
        self._firsts = re.compile(f"[{firsts}]").finditer
        self._halves = {mark[:size] for mark in longest_first for size in range(1, len(mark))}
        self._longest = len(longest_first[0]) - 1

    def find(self, text: str, start: int = 0) -> re.Match[str] | None:
        """The first of them from this place on."""
        return self._search(text, start)

    def half(self, text: str, start: int = 0) -> int:
        """Where the end of the text may be the beginning of one; else its length."""
        for first in self._firsts(text, max(start, len(text) - self._longest)):
            if text[first.start() :] in self._halves:
                return first.start()
        return len(text)


@cache
def marks_of(*marks: str) -> Marks:
    """These marks, of tables alone: they are kept."""
    return Marks(marks)


def trimmed(text: str, end: int) -> int:
    """End of a text without the white space before this place.

    Of much white space only the last is left out: what waits must not be long, since it is read
    again whenever more comes.
    """
    least = max(0, end - MAX_SPACE)
    return least + len(text[least:end].rstrip(SPACE))


class Coming:
    """The part of a text that has come and was not taken yet; readers are `at` a place in it."""

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.ended = False

    def take(self) -> str:
        """Takes the text before the place, which is then the beginning."""
        taken, self.text, self.at = self.text[: self.at], self.text[self.at :], 0
        return taken

    def peek(self) -> Reading[str]:
        """The next character, which is not passed; empty at the end of the text."""
        while self.at == len(self.text):
            if self.ended:
                return ""
            yield
        return self.text[self.at]

    def skip_space(self) -> Reading[str]:
        """Passes white space; the character after it."""
        while (char := (yield from self.peek())) and char in SPACE:
            self.at += 1
        return char

    def starts_with(self, wanted: str) -> Reading[bool]:
        """Passes this text, if it comes next."""
        while len(self.text) - self.at < len(wanted) and not self.ended:
            if not wanted.startswith(self.text[self.at :]):
                return False
            yield
        if not self.text.startswith(wanted, self.at):
            return False
        self.at += len(wanted)
        return True

    def first_of(self, wanted: Iterable[str]) -> Reading[str]:
        """Passes the first of these texts that comes next; empty where none does."""
        for each in wanted:
            if (yield from self.starts_with(each)):
                return each
        return ""

    def expect(self, *wanted: str) -> Reading[str]:
        """Passes one of these texts. Raises Broken where something else comes."""
        found = yield from self.first_of(wanted)
        if not found:
            raise self.wrong(*wanted)
        return found

    def tail(self, *wanted: str) -> Reading[str]:
        """Passes one of these texts, if it comes next; at the end of the text half of it, too."""
        found = yield from self.first_of(wanted)
        if not found and isinstance(self.wrong(*wanted), Cut):
            self.at = len(self.text)
        return found

    def wrong(self, *wanted: str) -> Broken:
        """What to raise where one of these texts was to come, and none has."""
        rest = self.text[self.at :]
        cut = self.ended and (not rest or any(each.startswith(rest) for each in wanted))
        return Cut() if cut else Broken()

    def ahead(self, count: int) -> Reading[str]:
        """The next characters, which are not passed; fewer at the end of the text."""
        while len(self.text) - self.at < count and not self.ended:
            yield
        return self.text[self.at : self.at + count]

    def any_of(self, chars: str) -> Reading[int]:
        """Passes as many of these characters as come; how many there were."""
        count = 0
        while (char := (yield from self.peek())) and char in chars:
            self.at += 1
            count += 1
        return count

    def json(self, depth: int = 0) -> Reading[None]:
        """Passes a value of JSON. Raises Broken where it stops to be one."""
        char = yield from self.peek()
        if char in ("{", "["):
            if depth == MAX_DEPTH:
                raise Broken
            yield from self._container(char, depth + 1)
        elif char == '"':
            yield from self.string()
        elif char in _WORDS:
            yield from self.expect(_WORDS[char])
        else:
            yield from self._number()

    def string(self) -> Reading[str]:
        """Passes a string of JSON; its text with the quotes."""
        start = self.at
        yield from self.expect('"')
        while (char := (yield from self.peek())) != '"':
            if char == "\\":
                self.at += 1
                yield from self._escape()
            elif char < " ":  # a control character, or the end of the text
                raise self.wrong()
            else:
                self.at = self._plain_end()
        self.at += 1
        return self.text[start : self.at]

    def _plain_end(self) -> int:
        """End of the run of characters that a string can have unescaped."""
        ends = (self.text.find(mark, self.at) for mark in ('"', "\\"))
        end = min((end for end in ends if end >= 0), default=len(self.text))
        run = self.text[self.at : end]
        if min(run) < " ":
            return self.at + next(i for i, char in enumerate(run) if char < " ")
        return end

    def _escape(self) -> Reading[None]:
        char = yield from self.peek()
        self.at += 1 if char else 0
        if char == "u":
            for _ in range(4):
                if (digit := (yield from self.peek())) == "" or digit not in _HEX:
                    raise self.wrong()
                self.at += 1
        elif char == "" or char not in _ESCAPES:
            self.at -= 1 if char else 0
            raise self.wrong()

    def _number(self) -> Reading[None]:
        yield from self.starts_with("-")
        if not (yield from self.starts_with("0")) and not (yield from self.any_of(DIGITS)):
            raise self.wrong()
        if (yield from self.starts_with(".")) and not (yield from self.any_of(DIGITS)):
            raise self.wrong()
        char = yield from self.peek()
        if char and char in "eE":
            self.at += 1
            sign = yield from self.peek()
            self.at += sign in ("+", "-")
            if not (yield from self.any_of(DIGITS)):
                raise self.wrong()

    def _container(self, opening: str, depth: int) -> Reading[None]:
        closing = "}" if opening == "{" else "]"
        self.at += 1
        if (yield from self.skip_space()) == closing:
            self.at += 1
            return
        while True:
            if opening == "{":
                yield from self.string()
                yield from self.skip_space()
                yield from self.expect(":")
                yield from self.skip_space()
            yield from self.json(depth)
            if (yield from self.skip_space()) != ",":
                yield from self.expect(closing)
                return
            self.at += 1
            yield from self.skip_space()
