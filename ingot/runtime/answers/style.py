"""Style of a model's answers, as its chat template tells it."""

from __future__ import annotations

import secrets
import string
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ingot.errors import RequestError, UsageError
from ingot.runtime.answers.formats import BY_NAME, FORMATS, ToolFormat, format_of
from ingot.runtime.answers.reader import AnswerReader
from ingot.runtime.answers.sections import Rows
from ingot.runtime.answers.thoughts import THOUGHTS, Shell, Thought, shell_of, thought_of
from ingot.runtime.answers.tools import forced, tool_schemas
from ingot.runtime.unique import unique_id

if TYPE_CHECKING:
    from ingot.runtime.tokenizer import Tokenizer

AUTO, NONE = "auto", "none"
TOOL_CALL_PARSERS = (AUTO, NONE, *(each.name for each in FORMATS))
_LETTERS = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class Style:
    """`format`: of calls, where it is known. `thought`: how reasoning is marked, and `shell` what
    may follow it. `tags` and `hidden_tags`: the tokenizer's."""

    format: ToolFormat | None = None
    thought: Thought | None = None
    shell: Shell | None = None
    tags: Mapping[str, int] = field(default_factory=dict)
    hidden_tags: Collection[str] = ()

    @property
    def thinks(self) -> bool:
        """True if reasoning may come before an answer."""
        return self.thought is not None

    def params(
        self,
        prompt: str,
        tools: Sequence[Any] | None = None,
        tool_choice: Any = None,
        max_thinking_tokens: int | None = None,
    ) -> dict[str, Any]:
        """Sampling parameters that the reader of an answer to the prompt needs.

        Raises RequestError for a bound of what is thought where nothing is.
        """
        rows, found = self._rows(tools, tool_choice), dict[str, Any]()
        needed = "\n".join(_tags(rows))
        special = rows.tools is not None and rows.tools.special
        if special or any(tag in needed for tag in self.hidden_tags):
            found["skip_special_tokens"] = False
        if thought := self.thought:
            found["reasoning"] = {
                "begin": "" if self.opened(prompt) else thought.begin.rstrip(),
                "end": thought.end,
                "closing": thought.closing,
                "max_tokens": max_thinking_tokens,
            }
        self.check_bound(max_thinking_tokens)
        return found

    def check_bound(self, max_thinking_tokens: int | None) -> None:
        """Raises RequestError for a bound of what is thought where nothing is."""
        if max_thinking_tokens is not None and not self.thinks:
            raise RequestError(
                "the model's chat template marks no reasoning",
                hint="Leave out its bound.",
            )

    def reader(
        self, prompt: str, *, tools: Sequence[Any] | None = None, tool_choice: Any = None
    ) -> AnswerReader | None:
        """Reader of an answer to the prompt; None where all of it is text."""
        rows = self._rows(tools, tool_choice)
        if rows.thought is None and rows.is_plain:
            return None
        return AnswerReader(
            rows,
            inside=self.opened(prompt),
            tools=tool_schemas(tools) if rows.tools else {},
            new_id=_short_id if rows.tools and rows.tools.short_ids else _id,
        )

    def opened(self, prompt: str) -> bool:
        """Returns whether the prompt ends inside of reasoning."""
        if self.thought is None:
            return False
        return prompt.rstrip().endswith(self.thought.begin.rstrip())

    def _rows(self, tools: Sequence[Any] | None, tool_choice: Any) -> Rows:
        called = None
        if tools and tool_choice != "none":
            called = self.format_of_calls if forced(tool_choice) else self.format
        return Rows(self.thought, self.shell, called)

    @property
    def format_of_calls(self) -> ToolFormat:
        """The format in which calls are asked for."""
        return self.format or BY_NAME["hermes"]


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
    told, thought, shell = _told(template or "")
    found = told if tool_call_parser == AUTO else BY_NAME.get(tool_call_parser)
    if found and found.thought:
        thought = next(each for each in THOUGHTS if each.name == found.thought)
    return Style(found, thought, shell, tags, hidden_tags)


@lru_cache(maxsize=64)
def _told(template: str) -> tuple[ToolFormat | None, Thought | None, Shell | None]:
    """What a chat template tells. Requests ask it again and again."""
    return format_of(template), thought_of(template), shell_of(template)


def tokenizer_style(
    tokenizer: Tokenizer, given: str | None = None, tool_call_parser: str = AUTO
) -> Style:
    """The style of a model with this tokenizer; `given` is another template than its own, by name
    or as Jinja. Raises as `style_of` does, and RequestError where there is no template."""
    template = tokenizer.template(given, with_tools=True)
    return style_of(template, tool_call_parser, tokenizer.tags, tokenizer.hidden_tags)


def guessing_reader() -> AnswerReader:
    """Reads an answer of a model of which no template is known; it has no calls."""
    return AnswerReader(Rows(guesses=THOUGHTS), inside=False, tools={}, new_id=_id)


def _tags(rows: Rows) -> Iterator[str]:
    """All that a text must keep to be read by these rows."""
    if rows.thought:
        yield from rows.thought.tags()
    if rows.shell:
        yield from (rows.shell.begin, rows.shell.end)
    if rows.tools:
        yield from rows.tools.tags()


def _id() -> str:
    return f"call_{unique_id()}"


def _short_id() -> str:
    return "".join(secrets.choice(_LETTERS) for _ in range(9))
