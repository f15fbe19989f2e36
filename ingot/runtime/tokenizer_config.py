"""What the runtime reads from a `tokenizer_config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ingot.errors import RequestError

_SPECIAL_NAMES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


def special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The named special tokens of a `tokenizer_config.json`, as templates get them."""
    tokens = {}
    for name in _SPECIAL_NAMES:
        value = config.get(f"{name}_token")
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            tokens[f"{name}_token"] = value
    return tokens


def template_source(
    config: Mapping[str, Any], file: str | None, given: str | None, *, with_tools: bool
) -> str:
    """The template to use: the given one, `chat_template.jinja`, or the config's.

    Of several named templates in a config, "tool_use" is for tools. Raises RequestError if there
    is no template.
    """
    templates = config.get("chat_template") if file is None else file
    if isinstance(templates, list):
        templates = {item["name"]: item["template"] for item in templates}
    if isinstance(templates, dict):
        name = "tool_use" if with_tools and "tool_use" in templates else "default"
        templates = templates.get(given or name, None if given is None else given)
    elif given is not None:
        templates = given
    if not isinstance(templates, str):
        raise RequestError(
            "the model has no chat template",
            hint="Use generate() with a plain prompt, or pass chat_template=...",
        )
    return templates
