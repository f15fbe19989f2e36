"""Reading the JSON files of a model directory."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ingot.errors import ConfigError, ModelDirError, TokenizerError
from ingot.models.file_names import CONFIG, TOKENIZER
from ingot.models.model_files import has_file, is_gguf, read_file
from ingot.models.other_formats import refuse_other_format

MAX_JSON_BYTES = 64 * 2**20


def check_model_dir(model_dir: Path) -> None:
    """Looks at what a path is, before anything in it is read.

    Raises:
        ModelDirError: it is no readable directory.
        CheckpointError: it is a model in a format of another program.
    """
    hint = "give a directory with config.json, *.safetensors and tokenizer.json"
    try:
        if not is_gguf(model_dir):
            next(model_dir.iterdir(), None)
    except FileNotFoundError as error:
        raise ModelDirError(f"{model_dir} does not exist", hint=hint) from error
    except NotADirectoryError as error:
        refuse_other_format(model_dir)
        raise ModelDirError(f"{model_dir} is not a directory", hint=hint) from error
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the path
        raise ModelDirError(f"{str(model_dir)!r} cannot be read: {error}", hint=hint) from error
    if not has_file(model_dir / CONFIG):
        refuse_other_format(model_dir)


def check_tokenizer(model_dir: Path) -> None:
    """Raises TokenizerError for a model directory without a tokenizer."""
    if not has_file(model_dir / TOKENIZER):
        raise no_tokenizer(str(model_dir))


def model_name(model_dir: Path) -> str:
    """What a model is called: owner/name for one in the hub's cache, else by its folder or file."""
    if is_gguf(model_dir):
        return re.sub(r"-\d{5}-of-\d{5}$", "", model_dir.stem)
    folder = model_dir.resolve()
    repository = folder.parent.parent.name
    if folder.parent.name == "snapshots" and repository.startswith("models--"):
        return repository.removeprefix("models--").replace("--", "/", 1)
    return folder.name


def no_tokenizer(where: str) -> TokenizerError:
    """The error of a model that has none; `where` is what the message calls the model."""
    return TokenizerError(
        f"{where} has no {TOKENIZER}",
        hint="ingot reads tokenizers in the format of the `tokenizers` library. Save one with "
        "transformers: AutoTokenizer.from_pretrained(...).save_pretrained(directory).",
    )


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        ModelDirError: as `read_json_bytes` does.
        ConfigError: it is not a JSON object, or repeats a key.
    """
    return parse_json_object(read_json_bytes(path), path.name)


def read_json_bytes(path: Path) -> bytes:
    """The bytes of a JSON file.

    Raises ModelDirError when it is missing, unreadable, larger than 64 MiB or no regular file.
    """
    try:
        return read_file(path, MAX_JSON_BYTES)
    except FileNotFoundError as error:
        raise ModelDirError(
            f"{path.parent} has no {path.name}",
            hint="a model directory needs config.json as Hugging Face writes it",
        ) from error
    except OSError as error:
        raise ModelDirError(
            f"{path} cannot be read: {error.strerror}",
            hint="it must be a regular file that you may read; fetch it again",
        ) from error


def parse_json_object(data: bytes, where: str) -> dict[str, Any]:
    """The object in JSON text; `where` is what messages call the text."""
    hint = "it must be one JSON object in UTF-8; fetch the file again if it was damaged"
    try:
        value = json.loads(data, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is not JSON: {error}", hint=hint) from error
    if not isinstance(value, dict):
        raise ConfigError(f"{where} holds {type(value).__name__}, not an object", hint=hint)
    return value


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key} stands twice")
        found[key] = value
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")
