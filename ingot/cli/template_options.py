"""`--chat-template`: another template than the model's own, from a file or by its name."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ingot.cli.arguments import Argument
from ingot.errors import UsageError, listed
from ingot.files import read_regular

if TYPE_CHECKING:
    from ingot.runtime.tokenizer import Tokenizer

MAX_BYTES = 1 << 20  # those of models have at most some 30 KB
CHAT_TEMPLATE = Argument(
    "--chat-template FILE|NAME",
    "a Jinja file, whose name has a dot or a slash; or one of the templates that the model has, "
    "such as tool_use",
)


@cache
def given_template(text: str | None) -> str | None:
    """Resolves the option: a template, read and tried, or a name as it is.

    Raises UsageError for a file that cannot be read, is no template, or does not come to an end.
    """
    if text is None or not any(mark in text for mark in "./"):
        return text
    try:
        template = read_regular(Path(text), MAX_BYTES).decode()
    except OSError as error:
        why = str(error.strerror or error).lower()
        raise UsageError(f"--chat-template {text} cannot be read: {why}", hint=_FORM) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--chat-template {text} is no text: {error}", hint=_FORM) from error
    if "\0" in template or not any(mark in template for mark in ("{{", "{%")):
        what = "is no template: it has no {{ or {%" if template.strip() else "is empty"
        raise UsageError(f"--chat-template {text} {what}", hint=_FORM)
    if fault := _fault(template):
        raise UsageError(f"--chat-template {text}: {fault}", hint=_FORM)
    return template


def check_name(template: str | None, tokenizer: Tokenizer) -> None:
    """Raises UsageError for a name that no template of the model has."""
    named = tokenizer.chat_templates
    if template is None or "{" in template or template in named:
        return
    raise UsageError(
        f"the model has no chat template {template!r:.80}",
        hint=f"It has {listed(list(named)) or 'none'}. "
        f"The name of a file has a dot or a slash: ./{template:.80}",
    )


_FORM = f"Give a file in Jinja, as chat_template.jinja of models is, of at most {MAX_BYTES} bytes."


def _fault(template: str) -> str:
    """Why a template cannot be used; empty if it can. A template is a program that may run for
    ever or ask for all memory, so another process tries it, and is ended where it does."""
    command = (sys.executable, "-m", "ingot.cli.template_trial")
    done = subprocess.run(command, input=template.encode(), capture_output=True, check=False)
    if done.returncode < 0:  # by a signal
        return "it does not come to an end, for a message of one word"
    return done.stdout.decode(errors="replace").strip()
