"""Defaults for the prompts of conversations, where requests do not say it."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from ingot.runtime.tokenizer import Tokenizer

_SYSTEM_ROLES = ("system", "developer")


class ChatDefaults(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Defaults that a server gives to conversations.

    template  another chat template than that of a model: the name of one that it has, or Jinja
    system    the system message of conversations that have none
    thinks    whether models think before they answer; None: as their templates have it
    """

    template: str | None = None
    system: str = ""
    thinks: bool | None = None

    def with_system(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """A conversation with a system message, if there is one for it."""
        if not self.system or any(each.get("role") in _SYSTEM_ROLES for each in messages):
            return messages
        return [{"role": "system", "content": self.system}, *messages]

    def check(self, tokenizer: Tokenizer) -> None:
        """Raises RequestError for a model that has not the template, or no switch for thinking, or
        whose template takes no system message. One that has no template at all answers no
        conversations, and is left alone."""
        if self.template is not None or tokenizer.has_chat_template:
            tokenizer.template(self.template)
            tokenizer.thinking_switch(self.thinks, self.template)
            if self.system:
                tokenizer.check_system(self.template)
