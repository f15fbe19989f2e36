"""The files of a model's tokenizer, as an artifact holds them.

What transformers reads in many files stands in few: tokenizer_config.json has what
special_tokens_map.json, added_tokens.json, chat_template.json and the folder of further templates
say, by the precedence of transformers. A file that no other adds to stays as it is.
"""

from __future__ import annotations

import json
from typing import Any

from ingot.artifact.tokenizer_config import ADDED, EXTRA, parsed_config
from ingot.compiler.vocabulary import within
from ingot.errors import TokenizerError
from ingot.models.file_names import (
    ADDED_TOKENS,
    JINJA,
    OLD_TEMPLATE,
    SPECIAL_TOKENS_MAP,
    TEMPLATE,
    TEMPLATES,
    TOKENIZER,
    TOKENIZER_CONFIG,
    TOKENIZER_FILES,
)
from ingot.models.model_dir import ModelDir

MAX_BYTES = 512 << 20
_CHAT = "chat_template"
_DEFAULT = "default"


def tokenizer_files(model_dir: ModelDir, vocab_size: int | None) -> dict[str, bytes]:
    """The files by their names, as far as they exist.

    `vocab_size` is that of the model, beyond which there are no tokens; None where nothing tells.
    Raises TokenizerError for one that cannot be read, or that is not what its name says.
    """
    files = {n: _read(model_dir, n) for n in TOKENIZER_FILES if model_dir.has(n)}
    config = parsed_config(files.get(TOKENIZER_CONFIG, b"{}"))
    before = dict(config)
    if ADDED not in config:
        config |= _side_file(model_dir, SPECIAL_TOKENS_MAP, config)
        if added := _added_tokens(model_dir, config, files.get(TOKENIZER, b"{}")):
            config[ADDED] = added
    if templates := _templates(model_dir):
        default = files.pop(TEMPLATE, None)
        first = {} if default is None else {_DEFAULT: _text(default, TEMPLATE)}
        config[_CHAT] = [{"name": n, "template": t} for n, t in (first | templates).items()]
    elif not config.get(_CHAT) and TEMPLATE not in files and model_dir.has(OLD_TEMPLATE):
        config |= _object(model_dir, OLD_TEMPLATE)
    if TOKENIZER in files and vocab_size is not None:
        texts = json.dumps(config.get(_CHAT), ensure_ascii=False)
        texts += files.get(TEMPLATE, b"").decode(errors="replace")
        files[TOKENIZER] = within(files[TOKENIZER], vocab_size, config, texts)
    if config != before:
        files[TOKENIZER_CONFIG] = json.dumps(config, indent=2).encode()
    return files


def _side_file(model_dir: ModelDir, name: str, config: dict[str, Any]) -> dict[str, Any]:
    """Reads special_tokens_map.json; to a list of extra tokens it only adds."""
    found = _object(model_dir, name) if model_dir.has(name) else {}
    extra, before = found.get(EXTRA), config.get(EXTRA)
    if isinstance(extra, list) and isinstance(before, list):
        found[EXTRA] = [*before, *(each for each in extra if each not in before)]
    return found


def _added_tokens(
    model_dir: ModelDir, config: dict[str, Any], tokenizer: bytes
) -> dict[str, dict[str, Any]]:
    """Tokens of added_tokens.json with ids that tokenizer.json has no added token for."""
    if not model_dir.has(ADDED_TOKENS):
        return {}
    ids = _object(model_dir, ADDED_TOKENS)
    for token, i in ids.items():
        if isinstance(i, bool) or not isinstance(i, int) or i < 0:
            raise TokenizerError(
                f"{ADDED_TOKENS} has {token!r:.40} = {i!r:.40}",
                hint="Each token has an id of at least 0; fetch the tokenizer's files again.",
            )
    entries = parsed_config(tokenizer, TOKENIZER).get("added_tokens") or []
    there = {each.get("id") for each in entries}
    return {
        str(i): {"content": token, "normalized": not special, "special": special}
        for token, i in ids.items()
        if i not in there
        for special in [token in _special(config)]
    }


def _special(config: dict[str, Any]) -> set[str]:
    """Spellings of the special tokens of a config, whatever else it has."""
    extra = config.get(EXTRA) or config.get("additional_special_tokens") or []
    named = [value for key, value in config.items() if key.endswith("_token")]
    values = [*named, *(extra.values() if isinstance(extra, dict) else extra)]
    spelled = (each.get("content") if isinstance(each, dict) else each for each in values)
    return {each for each in spelled if isinstance(each, str)}


def _templates(model_dir: ModelDir) -> dict[str, str]:
    """The templates in the folder for further ones, by their names."""
    folder = f"{TEMPLATES}/"
    found = sorted(name for name in model_dir.names if name.startswith(folder))
    return {
        name.removeprefix(folder).removesuffix(JINJA): _text(_read(model_dir, name), name)
        for name in found
    }


def _object(model_dir: ModelDir, name: str) -> dict[str, Any]:
    return parsed_config(_read(model_dir, name), name)


def _text(data: bytes, name: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        hint = "Save it in UTF-8, or fetch it again."
        raise TokenizerError(f"{name} is not UTF-8: {error}", hint=hint) from error


def _read(model_dir: ModelDir, name: str) -> bytes:
    hint = "It must be a regular file that you may read; fetch it again."
    try:
        return model_dir.read(name, MAX_BYTES)
    except OSError as error:
        raise TokenizerError(
            f"{model_dir.path / name} cannot be read: {error.strerror}", hint=hint
        ) from error
