"""Prompts in a file, a line each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ingot.errors import UsageError
from ingot.files import read_regular

MAX_BYTES = 64 << 20
FORMS = (
    'A file of prompts is UTF-8 with a text a line, or with JSON a line: {"prompt": "text"} or '
    '{"prompt": [token ids]}.'
)


GivenPrompt = tuple[str, str | list[int]]  # where it stands, and a text or token ids


def read_prompts(path: Path) -> list[GivenPrompt]:
    """The prompts that are not blank, texts or token ids, each with where it stands.

    The first line says whether lines are JSON. Raises UsageError for a file that is missing, empty,
    too large or none of both.
    """
    lines = [line.removesuffix("\r") for line in _text(path).split("\n")]
    kept = [(f"line {i} of {path}", line) for i, line in enumerate(lines, 1) if line.strip()]
    if not kept:
        raise UsageError(f"{path} has no prompt", hint=FORMS)
    if not isinstance(_json(kept[0][1]), dict):
        return [*kept]
    return [(where, _from_json(where, line)) for where, line in kept]


def _text(path: Path) -> str:
    try:
        text = read_regular(path, MAX_BYTES).decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint=FORMS) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is no text in UTF-8: byte {error.start}", hint=FORMS) from error
    if "\0" in text:
        raise UsageError(f"{path} is no text: it has NUL characters", hint=FORMS)
    return text


def _from_json(where: str, line: str) -> str | list[int]:
    value = _json(line)
    prompt = value.get("prompt") if isinstance(value, dict) else None
    if isinstance(prompt, str) and prompt:
        return prompt
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        return prompt
    raise UsageError(f"{where} is {line!r:.80}", hint=FORMS)


def _json(line: str) -> Any:
    """Parses a line as JSON; None if it is none."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
