"""A conversation with a model on a server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from ingot.cli.chat.conversation import Message
from ingot.cli.chat.display import Display
from ingot.cli.chat.options import ANSWER_OPTIONS, Options, name_of
from ingot.cli.chat.server import ChatServer
from ingot.cli.chat.thinking import AnswerParts, AnswerPiece
from ingot.cli.numbers import format_seconds
from ingot.runtime.answers import guessing_reader


def switch(thinks: bool | None, max_thinking_tokens: int | None) -> dict[str, Any]:
    """Asks for answers without thinking, in the words of all templates: which one the server has is
    not known here. Otherwise it asks for nothing, which every server understands."""
    return dict.fromkeys(("enable_thinking", "thinking"), False) if thinks is False else {}


class RemoteOptions(Options):
    """Options of which the server knows the defaults."""

    def rows(self) -> Iterator[tuple[str, str]]:
        shown = dict(super().rows())
        for argument in ANSWER_OPTIONS:
            name = name_of(argument)
            known = self.has(argument) or name == "think"
            yield name, shown[name] if known else "the server's"


@dataclass(frozen=True, kw_only=True)
class RemoteFigures:
    """Speed of an answer, as the client sees it."""

    ttft_seconds: float
    num_prompt_tokens: int | None
    num_tokens: int | None
    tokens_per_second: float | None

    def text(self) -> str:
        from ingot.cli.output import facts

        return facts(self.rows(), indent="")

    def rows(self) -> list[tuple[str, str]]:
        speed = "" if self.tokens_per_second is None else f" at {self.tokens_per_second:.0f} tok/s"
        return [
            ("first token", format_seconds(self.ttft_seconds)),
            ("prompt", _tokens(self.num_prompt_tokens)),
            ("answer", _tokens(self.num_tokens) + speed),
        ]


@dataclass
class RemoteAnswer:
    """An answer of a server as far as it has come; `usage` is what the server counted."""

    messages: list[Message]
    finish_reason: str = "abort"
    usage: dict[str, Any] = field(default_factory=dict)
    first_seconds: float = 0.0
    total_seconds: float = 0.0
    parts: AnswerParts = field(default_factory=lambda: AnswerParts(guessing_reader()))

    @property
    def text(self) -> str:
        return self.parts.text

    @property
    def thinking(self) -> str:
        return self.parts.thinking

    @property
    def num_prompt(self) -> int | None:
        return self._counted("prompt_tokens")

    @property
    def num_new(self) -> int | None:
        return self._counted("completion_tokens")

    @property
    def num_tokens(self) -> int | None:
        return self._counted("total_tokens")

    def result(self) -> dict[str, Any]:
        return {
            "text": self.text,
            **({"thinking": self.thinking} if self.thinking else {}),
            "finish_reason": self.finish_reason,
            **({"usage": self.usage} if self.usage else {}),
        }

    def take(self, event: dict[str, Any]) -> Iterator[AnswerPiece]:
        """Takes in an event of the stream, and gives what it adds to the answer."""
        if isinstance(event.get("usage"), dict):
            self.usage = event["usage"]
        choices = event.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else {}
        delta = choice.get("delta") or {}
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        reasoning = delta.get("reasoning") or delta.get("reasoning_content") or ""
        yield from self.parts.add(reasoning, thinking=True)
        yield from self.parts.take(delta.get("content") or "")  # some servers leave its tags there

    def _counted(self, name: str) -> int | None:
        count = self.usage.get(name)
        return count if isinstance(count, int) else None


class RemotePartner:
    """A model of a server; without a name, its first one."""

    def __init__(self, server: ChatServer, model: str | None) -> None:
        told = server.model(model)
        self.name = str(told["id"])
        most = told.get("max_model_len")
        self.max_model_len: int | None = most if isinstance(most, int) else None
        self._server = server

    def begin(self, messages: list[Message], options: Options) -> RemoteAnswer:
        return RemoteAnswer(messages)

    def write(self, answer: RemoteAnswer, options: Options, display: Display) -> None:
        body = {
            "model": self.name,
            "messages": answer.messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            **options.chosen,
        }
        if options.template_variables:
            body["chat_template_kwargs"] = options.template_variables
        began = time.perf_counter()
        events = self._server.events("/v1/chat/completions", body)
        with display, closing(events):
            for event in events:
                self._show(answer, answer.take(event), display, began)
            self._show(answer, answer.parts.take("", last=True), display, began)

    def figures(self, answer: RemoteAnswer) -> RemoteFigures:
        seconds = answer.total_seconds - answer.first_seconds
        later = (answer.num_new or 0) - 1
        return RemoteFigures(
            ttft_seconds=answer.first_seconds,
            num_prompt_tokens=answer.num_prompt,
            num_tokens=answer.num_new,
            tokens_per_second=later / seconds if later > 0 and seconds > 0 else None,
        )

    def check_system(self) -> None:
        """The server has the template."""

    def num_tokens(self, messages: list[Message]) -> int | None:
        return 0 if not messages else None  # the server tells it with an answer

    def _show(
        self, answer: RemoteAnswer, news: Iterator[AnswerPiece], display: Display, began: float
    ) -> None:
        answer.total_seconds = time.perf_counter() - began
        for text, thinking in news:
            answer.first_seconds = answer.first_seconds or answer.total_seconds
            display.show(text, thinking=thinking)


def _tokens(count: int | None) -> str:
    return "unknown" if count is None else f"{count} tokens"
