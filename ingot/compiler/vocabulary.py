"""Tokens beyond the vocabulary of a model, which has no rows for them.

Published tokenizers have some: those of Gemma 3 a token for images, of which its models of text
know nothing. They are left out, so that their text stays text, where nothing else makes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ingot.artifact.tokenizer_config import special_tokens
from ingot.errors import TokenizerError

_NEEDED = ("bos_token", "eos_token", "unk_token", "sep_token", "cls_token")


def within(data: bytes, vocab_size: int, config: Mapping[str, Any], templates: str) -> bytes:
    """A tokenizer.json without the tokens beyond the vocabulary that only their own text makes.

    It comes back as it is where there are none, and where it is not of the usual form: what else
    lies beyond is for its reader to refuse.

    Args:
        data: the file.
        vocab_size: of the model.
        config: tokenizer_config.json.
        templates: the text of all chat templates.

    Raises TokenizerError for one that the config names, or a template writes.
    """
    try:
        file = json.loads(data)
        beyond = _beyond(file, vocab_size)
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return data
    if not beyond:
        return data
    named = special_tokens(config)
    needed = {named.get(name) for name in _NEEDED}
    for token, i in beyond.items():
        if token in needed or token in templates:
            raise beyond_vocabulary("tokenizer.json", f"{i}, {token!r:.60}", vocab_size)
    return json.dumps(_without(file, beyond.keys()), ensure_ascii=False).encode()


def beyond_vocabulary(where: str, token: str, vocab_size: int) -> TokenizerError:
    """The error for a token of a file that has no row in the model."""
    return TokenizerError(
        f"{where} has token id {token}, but the model's vocabulary ends at {vocab_size - 1}",
        hint="The tokenizer belongs to another model, or the embedding was not resized.",
    )


def _beyond(file: dict[str, Any], vocab_size: int) -> dict[str, int]:
    """The tokens beyond the vocabulary that only their own text makes, and their ids."""
    added = {each["content"]: each["id"] for each in file["added_tokens"]}
    found = {token: i for token, i in added.items() if i >= vocab_size}
    return found | _unmade(file["model"], vocab_size)


def _unmade(model: dict[str, Any], vocab_size: int) -> dict[str, int]:
    """The tokens of BPE beyond the vocabulary that no merge gives, and that are no single letter
    or byte."""
    if model["type"] != "BPE" or model.get("ignore_merges"):
        return {}
    beyond = {token: i for token, i in model["vocab"].items() if i >= vocab_size and len(token) > 1}
    if not beyond:
        return {}
    merged = {"".join(m.split(" ") if isinstance(m, str) else m) for m in model["merges"]}
    return {t: i for t, i in beyond.items() if t not in merged and not _is_byte(t)}


def _is_byte(token: str) -> bool:
    return len(token) == 6 and token.startswith("<0x")


def _without(file: dict[str, Any], tokens: Iterable[str]) -> dict[str, Any]:
    left, model = set(tokens), file["model"]
    added = [each for each in file["added_tokens"] if each["content"] not in left]
    if isinstance(model["vocab"], dict):
        vocab = {token: i for token, i in model["vocab"].items() if token not in left}
        model = model | {"vocab": vocab}
    return file | {"added_tokens": added, "model": model}
