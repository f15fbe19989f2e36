"""Choice of a chat template: the model's own, another of its by name, or one that is given.

Nothing here imports jinja2, which only those need who chat.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ingot.errors import RequestError, TokenizerError, listed


def named_templates(config: Mapping[str, Any], file: str | None) -> dict[str, str]:
    """The templates of a model by name: that of `chat_template.jinja`, or those of the tokenizer's
    config. One without a name is the "default". Raises TokenizerError for what is no template."""
    given = config.get("chat_template") if file is None else file
    templates = {"default": given} if isinstance(given, str) else given or {}
    try:
        if isinstance(templates, list):
            templates = {item["name"]: item["template"] for item in templates}
        if not all(isinstance(text, str) for text in [*templates, *templates.values()]):
            raise TypeError
    except (AttributeError, KeyError, TypeError):
        raise TokenizerError(
            f"tokenizer_config.json: chat_template is {given!r:.80}",
            hint="It is a text, or a list of texts with a name and a template each.",
        ) from None
    return dict(templates)


def template_source(named: Mapping[str, str], given: str | None, *, with_tools: bool) -> str:
    """The template to use: the given one, by its name or as Jinja, or that of the model; of
    several, "tool_use" is for tools. Raises RequestError if there is none."""
    if given is not None and given not in named:
        if any(mark in given for mark in ("{{", "{%")):
            return given
        raise RequestError(
            f"{given!r:.80} is no chat template",
            hint=f"The model has {listed(list(named)) or 'none'}. "
            "One of your own is Jinja, with {{ or {%, or it would leave out the messages.",
        )
    name = given or ("tool_use" if with_tools and "tool_use" in named else "default")
    if name not in named:
        raise RequestError(
            f"none of the model's chat templates is the default: {', '.join(sorted(named))}"
            if named
            else "the model has no chat template",
            hint="Use generate() with a plain prompt, or pass chat_template=...",
        )
    return named[name]
