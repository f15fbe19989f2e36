"""Reasoning that a completion begins with: where it ends, and how long it may be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ingot.errors import RequestError
from ingot.runtime.field_checks import integer, refuse, refuse_unknown

MAX_TAG = 64  # characters of a tag
MAX_CLOSING = 1024
UNLIMITED = 2**31 - 1

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningParams:
    """The reasoning that a completion may begin with. Strings of `stop` end what follows it alone.

    begin        what opens it, behind white space; "" where the prompt has opened it
    end          what ends it
    max_tokens   at most this many tokens of it, with those of `begin`; None: as many as there are
    closing      what is written then; it contains `end`, and is `end` by default

    Raises RequestError that names the field.
    """

    begin: str = "<think>"
    end: str = "</think>"
    max_tokens: int | None = None
    closing: str = ""

    def __post_init__(self) -> None:
        for name, most in {"begin": MAX_TAG, "end": MAX_TAG, "closing": MAX_CLOSING}.items():
            text = getattr(self, name)
            if not isinstance(text, str) or len(text) > most:
                refuse(f"reasoning.{name}", text, f"a text of at most {most} characters")
        if not self.end:
            refuse("reasoning.end", self.end, "a text that is not empty")
        if self.max_tokens is not None:
            integer("reasoning.max_tokens", self.max_tokens, 0, UNLIMITED)
        if not self.closing:
            object.__setattr__(self, "closing", self.end)
        if self.end not in self.closing:
            refuse("reasoning.closing", self.closing, f"a text with {self.end!r}")

    @classmethod
    def of(cls, given: Any) -> ReasoningParams | None:
        """Converts an argument: an object of this class, a dict of its fields, or None."""
        if given is None or isinstance(given, cls):
            return given
        if not isinstance(given, Mapping):
            raise RequestError(
                f"reasoning is {given!r:.80}",
                hint="reasoning must be ReasoningParams, or a dict of its fields.",
            )
        refuse_unknown("reasoning", map(str, given), [f.name for f in fields(cls)])
        return cls(**given)

    def is_under_way(self, text: str) -> bool:
        """Returns whether a completion that has this text so far is in its reasoning."""
        return text.lstrip().startswith(self.begin) and self.end not in text


class ReasoningSplit:
    """Splits a text that comes in pieces into reasoning, with its tags, and what follows it."""

    def __init__(self, params: ReasoningParams) -> None:
        self._begin, self._end = params.begin, params.end
        self._held = ""  # what may be the beginning of reasoning
        self._tail = ""  # of the reasoning, what may be the beginning of its end
        self._begun = not params.begin
        self._over = False

    def push(self, text: str) -> tuple[str, str]:
        """Takes a piece; the reasoning that it adds, and what it adds behind that."""
        if self._over:
            return "", text
        if self._begun:
            return self._inside(text)
        self._held += text
        start = self._held.lstrip()
        if start.startswith(self._begin):
            held, self._held, self._begun = self._held, "", True
            return self._inside(held)
        return ("", "") if self._begin.startswith(start) else ("", self.finish())

    def finish(self) -> str:
        """What was held back and is no reasoning, at the end of the text."""
        held, self._held = self._held, ""
        self._over = self._over or not self._begun
        return held

    def _inside(self, text: str) -> tuple[str, str]:
        seen = self._tail + text
        at = seen.find(self._end)
        if at < 0:
            self._tail = seen[max(len(seen) - len(self._end) + 1, 0) :]
            return text, ""
        self._over = True
        end = at + len(self._end) - len(self._tail)
        return text[:end], text[end:]


@dataclass(frozen=True, slots=True)
class Budget:
    """Tokens that close reasoning once it has so many.

    `decode` gives the text of tokens, with the special ones.
    """

    params: ReasoningParams
    most: int
    closing: tuple[int, ...]
    decode: Decode

    @classmethod
    def of(
        cls, params: ReasoningParams, encode: Callable[[str], list[int]], decode: Decode
    ) -> Budget | None:
        """The budget; None where there is none."""
        if params.max_tokens is None:
            return None
        begin = encode(params.begin) if params.begin else []
        most, closing = params.max_tokens, tuple(encode(params.closing))
        if most < len(begin):  # the model cannot be kept from thinking but by a thought of its own
            most, closing = 0, (*begin, *closing)
        return cls(params, most, closing, decode)


class BudgetState:
    """What a budget makes of one sequence. For one thread only."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._is_used_up: bool | None = None  # None: it is not known yet

    def forced(self, token_ids: list[int], num_prompt: int) -> int | None:
        """The token that has to come next; None where the model is free."""
        budget = self._budget
        place = len(token_ids) - num_prompt - budget.most
        if place < 0 or place >= len(budget.closing):
            self._is_used_up = None
            return None
        if self._is_used_up is None:
            thought = token_ids[num_prompt : num_prompt + budget.most]
            under_way = budget.params.is_under_way(budget.decode(thought))
            self._is_used_up = under_way or budget.most == 0
        return budget.closing[place] if self._is_used_up else None
