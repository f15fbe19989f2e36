"""Whoever answers in a conversation: a model that is open here, or one on a server."""

from __future__ import annotations

from typing import Any, Protocol

from ingot.cli.chat.conversation import Message
from ingot.cli.chat.display import Display
from ingot.cli.chat.options import Options


class AnswerSpeed(Protocol):
    """Speed of an answer."""

    def text(self) -> str:
        """For people."""
        ...

    def rows(self) -> list[tuple[str, str]]:
        """Name and value of each figure, for people."""
        ...


class PartnerAnswer(Protocol):
    """An answer as far as it has come.

    `num_tokens` counts those of the conversation with it, `num_new` its own; None: unknown.
    """

    finish_reason: str

    @property
    def text(self) -> str: ...

    @property
    def thinking(self) -> str: ...

    @property
    def num_tokens(self) -> int | None: ...

    @property
    def num_new(self) -> int | None: ...

    def result(self) -> dict[str, Any]:
        """The answer for `--json`."""
        ...


class Partner(Protocol):
    """Answers messages. `max_model_len`: the most tokens of a conversation, where it is known."""

    name: str
    max_model_len: int | None

    def begin(self, messages: list[Message], options: Options) -> PartnerAnswer:
        """An answer to these, of which nothing has come yet.

        Raises RequestError for messages that have no room.
        """
        ...

    def write(self, answer: Any, options: Options, display: Display) -> None:
        """Has it come, and shows it. What has come stays if an error ends it."""
        ...

    def figures(self, answer: Any) -> AnswerSpeed: ...

    def check_system(self) -> None:
        """Raises RequestError where it is known that system messages are refused or left out."""
        ...

    def num_tokens(self, messages: list[Message]) -> int | None:
        """Tokens of a conversation. Raises RequestError for one that is refused."""
        ...
