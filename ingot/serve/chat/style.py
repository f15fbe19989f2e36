"""Style of a model's answers, as its chat template tells it."""

from __future__ import annotations

import secrets
import string
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ingot.errors import RequestError, UsageError
from ingot.serve.chat.formats import FORMATS, ToolFormat, format_of
from ingot.serve.chat.reader import CLOSE, OPEN, AnswerReader
from ingot.serve.chat.tools import forced, tool_names
from ingot.serve.unique import unique_id

AUTO, NONE = "auto", "none"
TOOL_CALL_PARSERS = (AUTO, NONE, *(each.name for each in FORMATS))
CLOSING = f"\n{CLOSE}\n\n"  # as templates write the end of what was thought
_LETTERS = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class Style:
    """`format`: of calls, where it is known. `thinks`: reasoning in tags may come first.
    `tags` and `hidden_tags`: the tokenizer's."""

    format: ToolFormat | None
    thinks: bool
    tags: Mapping[str, int] = field(default_factory=dict)
    hidden_tags: Collection[str] = ()

    def params(
        self,
        prompt: str,
        tools: Sequence[Any] | None,
        tool_choice: Any,
        max_thinking_tokens: int | None = None,
    ) -> dict[str, Any]:
        """Sampling parameters that the reader of an answer to the prompt needs.

        Raises RequestError for a bound of what is thought where nothing is.
        """
        tool_format, found = self._format(tools, tool_choice), dict[str, Any]()
        marks = {OPEN, CLOSE} if self.thinks else set()
        if (tool_format and tool_format.special) or marks.intersection(self.hidden_tags):
            found["skip_special_tokens"] = False
        if self.thinks:
            begin = "" if self.opened(prompt) else OPEN
            found["reasoning"] = {"begin": begin, "end": CLOSE, "closing": CLOSING}
            found["reasoning"]["max_tokens"] = max_thinking_tokens
        elif max_thinking_tokens is not None:
            raise RequestError(
                "the model's chat template marks no reasoning",
                hint="Leave out its bound.",
            )
        return found

    def reader(
        self, prompt: str, *, tools: Sequence[Any] | None = None, tool_choice: Any = None
    ) -> AnswerReader | None:
        """Reader of an answer to the prompt; None where all of it is text."""
        tool_format = self._format(tools, tool_choice)
        if not (self.thinks or tool_format):
            return None
        return AnswerReader(
            thinks=self.thinks,
            inside=self.opened(prompt),
            tools=tool_format,
            names=tool_names(tools),
            new_id=_short_id if tool_format and tool_format.short_ids else _id,
        )

    def opened(self, prompt: str) -> bool:
        """Returns whether the prompt ends inside of reasoning."""
        return self.thinks and prompt.rstrip().endswith(OPEN)

    def _format(self, tools: Sequence[Any] | None, tool_choice: Any) -> ToolFormat | None:
        if not tools or tool_choice == "none":
            return None
        return self.format_of_calls if forced(tool_choice) else self.format

    @property
    def format_of_calls(self) -> ToolFormat:
        """The format in which calls are asked for."""
        return self.format or next(each for each in FORMATS if each.name == "hermes")


def style_of(
    template: str | None,
    tool_call_parser: str = AUTO,
    tags: Mapping[str, int] = MappingProxyType({}),
    hidden_tags: Collection[str] = (),
) -> Style:
    """The style of a model with this chat template, whose tokenizer has these tags.

    Raises UsageError for a `tool_call_parser` that is none of TOOL_CALL_PARSERS.
    """
    if tool_call_parser not in TOOL_CALL_PARSERS:
        raise UsageError(
            f"there is no tool call parser {tool_call_parser!r:.80}",
            hint=f"Supported: {', '.join(TOOL_CALL_PARSERS)}.",
        )
    known = {each.name: each for each in FORMATS}
    found = format_of(template or "") if tool_call_parser == AUTO else known.get(tool_call_parser)
    return Style(found, CLOSE in (template or ""), tags, hidden_tags)


def _id() -> str:
    return f"call_{unique_id()}"


def _short_id() -> str:
    return "".join(secrets.choice(_LETTERS) for _ in range(9))
