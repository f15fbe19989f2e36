"""Checks a model's tokenizer and brings its files into the artifact."""

from __future__ import annotations

import shutil
from pathlib import Path

from tokenizers import Tokenizer

from ingot.errors import TokenizerError

FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
)


def load_tokenizer(model_dir: Path, vocab_size: int) -> Tokenizer:
    """The tokenizer of a model directory.

    Raises:
        TokenizerError: there is none, it cannot be read, or it has ids beyond the vocabulary.
    """
    path = model_dir / "tokenizer.json"
    if not path.is_file():
        raise TokenizerError(
            f"{model_dir} has no tokenizer.json",
            hint="ingot reads tokenizers in the format of the `tokenizers` library. Save one with "
            "transformers: AutoTokenizer.from_pretrained(...).save_pretrained(directory).",
        )
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(
            f"{path} cannot be read: {error}",
            hint="The file must be a tokenizer.json written by the `tokenizers` library.",
        ) from error
    largest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    if largest >= vocab_size:
        raise TokenizerError(
            f"{path} has token id {largest}, but the model's vocabulary ends at {vocab_size - 1}",
            hint="The tokenizer belongs to another model, or the embedding was not resized.",
        )
    return tokenizer


def copy_tokenizer(model_dir: Path, out: Path) -> None:
    """Copies those of the tokenizer's files that exist."""
    out.mkdir()
    for name in FILES:
        if (model_dir / name).is_file():
            shutil.copyfile(model_dir / name, out / name)
