"""Parts that sides without an artifact share: packages, tokenizers, and greedy text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ingot.errors import TokenizerError, UsageError
from ingot.models.file_names import TOKENIZER
from ingot.models.model_dir import ModelDir
from ingot.runtime.arrays import Float32
from ingot.runtime.tokenizer import Tokenizer
from ingot.version import DISTRIBUTION

MAX_TOKENIZER_BYTES = 512 << 20


def folder_tokenizer(folder: ModelDir, vocab_size: int) -> Tokenizer | None:
    """The tokenizer in a folder or a GGUF file; None where there is none.

    Raises TokenizerError for one that cannot be read or is of another model.
    """
    if not folder.has(TOKENIZER):
        return None
    try:
        data = folder.read(TOKENIZER, MAX_TOKENIZER_BYTES)
    except OSError as error:
        raise TokenizerError(
            f"{folder.path / TOKENIZER} cannot be read: {error.strerror}"
        ) from error
    return Tokenizer(data, vocab_size=vocab_size)


def greedy_by_logits(
    logits: Callable[[Sequence[int]], Float32], tokens: Sequence[int], count: int
) -> list[int]:
    """The `count` likeliest tokens after those; the whole sequence is scored anew for each."""
    found: list[int] = []
    for _ in range(count):
        found.append(int(logits([*tokens, *found])[-1].argmax()))
    return found


@contextmanager
def needed(package: str, extra: str, by: str) -> Iterator[None]:
    """Imports a package inside, which comes with an extra; `by` says what needs it.

    Raises UsageError where it is not installed or broken.
    """
    try:
        yield
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError) and error.name == package
        reason = (str(error).strip().splitlines() or [""])[0]
        raise UsageError(
            f"{package} {'is not installed' if absent else f'cannot be imported: {reason}'}",
            hint=f"{by} needs it: pip install '{DISTRIBUTION}[{extra}]'",
        ) from error
