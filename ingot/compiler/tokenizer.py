"""Checks a model's tokenizer and brings its files into the artifact."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tokenizers import Tokenizer

from ingot.compiler.golden_text import TEXT
from ingot.errors import TokenizerError
from ingot.models.config_file import check_tokenizer
from ingot.models.file_names import TOKENIZER, TOKENIZER_FILES
from ingot.models.model_files import has_file, read_file

MAX_BYTES = 512 << 20


def load_tokenizer(model_dir: Path, vocab_size: int | None) -> Tokenizer:
    """The tokenizer of a model directory, without padding and truncation.

    `vocab_size` is that of the model; None where nothing tells it.

    Raises:
        TokenizerError: there is none, one of its files cannot be read, it cannot encode the text
            of the golden prompts, or it has ids beyond the vocabulary.
    """
    path = model_dir / TOKENIZER
    check_tokenizer(model_dir)
    text, *_ = [_read(found) for found in _present(model_dir)]
    hint = "The file must be a tokenizer.json written by the `tokenizers` library."
    with _refusing(f"{path} cannot be read", hint):
        tokenizer = Tokenizer.from_str(text.decode())
        tokenizer.no_padding()
        tokenizer.no_truncation()
        known = tokenizer.get_vocab(with_added_tokens=True).values()
    with_special = encode(tokenizer, TEXT, f"{path} in English text", add_special_tokens=True)
    largest = max((*known, *with_special), default=-1)
    if vocab_size is not None and largest >= vocab_size:
        raise TokenizerError(
            f"{path} has token id {largest}, but the model's vocabulary ends at {vocab_size - 1}",
            hint="The tokenizer belongs to another model, or the embedding was not resized.",
        )
    return tokenizer


def encode(
    tokenizer: Tokenizer, text: str, where: str, *, add_special_tokens: bool = False
) -> list[int]:
    """Token ids of a text, which messages call `where`. Raises TokenizerError."""
    hint = "Check the tokenizer with the `tokenizers` library: it must encode any text in UTF-8."
    with _refusing(f"the tokenizer cannot encode {where}", hint):
        ids: list[int] = tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
    return ids


def copy_tokenizer(model_dir: Path, out: Path) -> None:
    """Copies the files of the tokenizer into a folder, as far as they exist."""
    out.mkdir(exist_ok=True)
    for path in _present(model_dir):
        (out / path.name).write_bytes(_read(path))


def _present(model_dir: Path) -> list[Path]:
    return [path for name in TOKENIZER_FILES if has_file(path := model_dir / name)]


def _read(path: Path) -> bytes:
    hint = "It must be a regular file that you may read; fetch it again."
    try:
        return read_file(path, MAX_BYTES)
    except OSError as error:
        raise TokenizerError(f"{path} cannot be read: {error.strerror}", hint=hint) from error


@contextmanager
def _refusing(what: str, hint: str) -> Iterator[None]:
    """Turns what the library raises into a TokenizerError.

    The library raises a bare Exception, or, if its Rust code panics, a BaseException that has no
    public name.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise TokenizerError(f"{what}: {error}", hint=hint) from error
