"""What lies beside the weights of a side that is no artifact."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ingot.errors import TokenizerError
from ingot.models.config_file import read_json_object
from ingot.models.file_names import TOKENIZER
from ingot.models.model_files import has_file, read_file
from ingot.runtime.tokenizer import Tokenizer

MAX_TOKENIZER_BYTES = 512 << 20


def folder_tokenizer(folder: Path, vocab_size: int) -> Tokenizer | None:
    """The tokenizer in a folder or a GGUF file; None where there is none.

    Raises TokenizerError for one that cannot be read or is of another model.
    """
    path = folder / TOKENIZER
    if not has_file(path):
        return None
    try:
        data = read_file(path, MAX_TOKENIZER_BYTES)
    except OSError as error:
        raise TokenizerError(f"{path} cannot be read: {error.strerror}") from error
    return Tokenizer(data, vocab_size=vocab_size)


def optional_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty where there is no file. Raises ModelDirError."""
    return read_json_object(path) if os.path.lexists(path) else {}
