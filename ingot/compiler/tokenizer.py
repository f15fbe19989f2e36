"""Checks a model's tokenizer and brings its files into the artifact."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer

from ingot.artifact.longest_match import LongestMatch, longest_match
from ingot.artifact.tokenizer_config import configure, parsed_config
from ingot.compiler.golden_text import TEXT
from ingot.compiler.tokenizer_files import tokenizer_files
from ingot.compiler.vocabulary import beyond_vocabulary
from ingot.errors import TokenizerError
from ingot.models.file_names import TOKENIZER, TOKENIZER_CONFIG
from ingot.models.model_dir import ModelDir
from ingot.models.world.vocabulary import BYTES, tokenizer_json


def load_tokenizer(model_dir: ModelDir, vocab_size: int | None) -> Tokenizer:
    """The tokenizer of a model directory, without padding and truncation.

    `vocab_size` is that of the model; None where nothing tells it. Tokens beyond it that only
    their own text makes are left out.

    Raises:
        TokenizerError: there is none, one of its files cannot be read, it cannot encode the text
            of the golden prompts, or it has other ids beyond the vocabulary.
    """
    return parsed_tokenizer(model_dir, checked_files(model_dir, vocab_size), vocab_size)


def checked_files(model_dir: ModelDir, vocab_size: int | None) -> dict[str, bytes]:
    """Reads `tokenizer_files`. Raises TokenizerError also where there is no tokenizer."""
    model_dir.check_tokenizer()
    return tokenizer_files(model_dir, vocab_size)


def parsed_tokenizer(
    model_dir: ModelDir, files: Mapping[str, bytes], vocab_size: int | None
) -> Tokenizer:
    """The tokenizer that the files of a model directory make; as `load_tokenizer`. Where there is
    none, bytes stand for codes, so that a compile can ask the model for something."""
    path = model_dir.path / TOKENIZER
    files = files if TOKENIZER in files else {TOKENIZER: tokenizer_json(BYTES, "the bytes")}
    hint = "The file must be a tokenizer.json written by the `tokenizers` library."
    with _refusing(f"{path} cannot be read", hint):
        tokenizer = Tokenizer.from_str(files[TOKENIZER].decode())
        configure(tokenizer, parsed_config(files.get(TOKENIZER_CONFIG, b"{}")), vocab_size)
        known = tokenizer.get_vocab(with_added_tokens=True).values()
    with_special = encode(tokenizer, TEXT, f"{path} in English text", add_special_tokens=True)
    largest = max((*known, *with_special), default=-1)
    if vocab_size is not None and largest >= vocab_size:
        raise beyond_vocabulary(str(path), str(largest), vocab_size)
    return tokenizer


def encode(
    tokenizer: Tokenizer, text: str, where: str, *, add_special_tokens: bool = False
) -> list[int]:
    """Token ids of a text, which messages call `where`. Raises TokenizerError."""
    if (longest := _longest(tokenizer)) is not None:
        return longest.encode(text, add_special_tokens)
    hint = "Check the tokenizer with the `tokenizers` library: it must encode any text in UTF-8."
    with _refusing(f"the tokenizer cannot encode {where}", hint):
        ids: list[int] = tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
    return ids


@lru_cache(maxsize=1)
def _longest(tokenizer: Tokenizer) -> LongestMatch | None:
    """Its tables take a while to make, and a compile reads many texts."""
    return longest_match(tokenizer)


def copy_tokenizer(model_dir: ModelDir, out: Path, vocab_size: int | None) -> None:
    """Writes the files of the tokenizer into a folder, as far as they exist.

    Raises TokenizerError as `load_tokenizer` does.
    """
    write_tokenizer(tokenizer_files(model_dir, vocab_size), out)


def write_tokenizer(files: Mapping[str, bytes], out: Path) -> None:
    """Writes the files of a tokenizer into a folder."""
    out.mkdir(exist_ok=True)
    for name, data in files.items():
        (out / name).write_bytes(data)


@contextmanager
def _refusing(what: str, hint: str) -> Iterator[None]:
    """Turns what the library raises into a TokenizerError.

    The library raises a bare Exception, or, if its Rust code panics, a BaseException that has no
    public name.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit, TokenizerError):
        raise
    except BaseException as error:
        raise TokenizerError(f"{what}: {error}", hint=hint) from error
