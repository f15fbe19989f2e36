"""Escapes for special tokens in conversations: what people write becomes no special token."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

# Characters that mean nothing, for marks that no text has.
_PRIVATE = range(0xE000, 0xF900)


class Encoder(Protocol):
    """Text to tokens, as `Tokenizer.encode` does it."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...


class Marks:
    """Breaks the spellings of special tokens in what people wrote, by a mark that they did not
    write, so that they differ from those that a template writes. Where there are none, which is
    the rule, nothing is changed and the mark is empty.

    Args:
        spellings: finds special tokens; None where there are none.
        given: all that people wrote, as plain data.
    """

    def __init__(self, spellings: re.Pattern[str] | None, given: Any) -> None:
        self.mark = ""
        self._spellings = spellings
        if spellings is None or not any(map(spellings.search, _strings(given))):
            return
        used = {letter for text in _strings(given) for letter in text}
        self.mark = next(chr(code) for code in _PRIVATE if chr(code) not in used)

    def marked(self, value: Any) -> Any:
        """A copy of plain data with its texts marked."""
        if not self.mark:
            return value
        if isinstance(value, str):
            return self._broken(value)
        if isinstance(value, Mapping):
            return {self.marked(key): self.marked(item) for key, item in value.items()}
        is_list = isinstance(value, (list, tuple))
        return [self.marked(item) for item in value] if is_list else value

    def _broken(self, text: str) -> str:
        assert self._spellings is not None, "there is a mark only where there are spellings"
        parts, begin = [], 0
        # From the second letter on: what begins inside of a spelling is one as well.
        while found := self._spellings.search(text, begin):
            parts.append(text[begin : found.start() + 1])
            begin = found.start() + 1
        return self.mark.join([*parts, text[begin:]])


def without_marks(text: str, mark: str) -> str:
    """A rendered text as it was meant."""
    return text.replace(mark, "") if mark else text


def encode_marked(
    tokenizer: Encoder, text: str, mark: str, *, add_special_tokens: bool = False
) -> list[int]:
    """The tokens of a rendered text. Where a spelling is broken, the parts are tokens of their
    own, and so no special one. Raises RequestError as `Tokenizer.encode` does."""
    first, *rest = text.split(mark) if mark else [text]
    ids = tokenizer.encode(first, add_special_tokens=add_special_tokens)
    for part in rest:
        ids += tokenizer.encode(part, add_special_tokens=False)
    return ids


def _strings(value: Any) -> Iterator[str]:
    """All texts in plain data."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings(item)
