"""Variables of chat templates that a request may give besides the conversation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ingot.errors import RequestError

# What a template gets under these names is ours to say.
OURS = frozenset(
    "messages tools documents chat_template add_generation_prompt continue_final_message "
    "tokenize return_dict fills_silence".split()
)


def check_variables(given: Mapping[str, Any]) -> None:
    """Raises RequestError for a name that is no variable of a template."""
    for name in given:
        if not isinstance(name, str) or name in OURS:
            raise RequestError(
                f"chat_template_kwargs has {name!r:.80}, which is no variable of a template",
                hint="Give it as an argument of its own.",
            )
