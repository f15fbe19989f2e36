"""What lies beside the weights of a side that is no artifact."""

from __future__ import annotations

from ingot.errors import TokenizerError
from ingot.models.file_names import TOKENIZER
from ingot.models.model_dir import ModelDir
from ingot.runtime.tokenizer import Tokenizer

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
