"""The tokens that calibrate: of a user's text, or of the one that a compile brings along."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from tokenizers import Tokenizer

from ingot.compiler.golden_text import added_before
from ingot.compiler.quantization.sample_text import PARTS
from ingot.compiler.text_file import read_text
from ingot.compiler.tokenizer import encode
from ingot.errors import TokenizerError, UsageError

SEQUENCE_TOKENS = 512
MAX_SEQUENCES = 16
MIN_TOKENS = 2048
SAMPLE_TOKENS = 2048  # of the bundled text: more change nothing that can be measured


def calibration_sequences(
    path: Path | None, tokenizer: Tokenizer, *, max_model_len: int
) -> list[list[int]]:
    """Token sequences, spread evenly over a text; none without a text.

    Raises:
        UsageError: the file cannot be read, is not UTF-8 or is too short.
        TokenizerError: a text that the tokenizer cannot encode.
    """
    if path is None:
        return []
    text = read_text(path, "the calibration text")
    tokens = encode(tokenizer, text, f"the calibration text {path}")
    if len(tokens) < MIN_TOKENS:
        raise UsageError(
            f"the calibration text {path} is too short: {len(tokens)} tokens",
            hint=f"Give at least {MIN_TOKENS} tokens of text that resembles what the model is for; "
            f"up to {SEQUENCE_TOKENS * MAX_SEQUENCES} are used.",
        )
    length = min(SEQUENCE_TOKENS, max_model_len)
    return _spread(tokens, length, SEQUENCE_TOKENS * MAX_SEQUENCES)


def sample_sequences(
    tokenizer: Tokenizer, vocab_size: int, *, max_model_len: int
) -> list[list[int]]:
    """Token sequences of the bundled text. Each begins as the tokenizer begins a text.

    What the tokenizer cannot encode, and tokens that the model does not have, are left out: so
    there may be few, or none.
    """
    length = min(SEQUENCE_TOKENS, max_model_len)
    encoded = [_known(tokenizer, part, vocab_size) for part in PARTS]
    begin = _beginning(tokenizer, vocab_size)
    begin = begin if len(begin) < length else []
    tokens = [*chain.from_iterable(encoded)]
    whole = _spread(tokens, length - len(begin), SAMPLE_TOKENS)
    return [[*begin, *sequence] for sequence in whole]


def _spread(tokens: Sequence[int], length: int, most: int) -> list[list[int]]:
    """Sequences of such a length, spread evenly, of at most so many tokens; one of all tokens
    where these are fewer than a sequence has."""
    count = min(most, len(tokens)) // length
    if count <= 1:
        return [[*tokens[:length]]] if tokens else []
    starts = [i * (len(tokens) - length) // (count - 1) for i in range(count)]
    return [[*tokens[start : start + length]] for start in starts]


def _beginning(tokenizer: Tokenizer, vocab_size: int) -> list[int]:
    """What the tokenizer puts before a text, such as BOS."""
    text = PARTS[0]
    try:
        whole = encode(tokenizer, text, "the bundled text", add_special_tokens=True)
        added = added_before(encode(tokenizer, text, "the bundled text"), whole)
    except TokenizerError:
        return []
    return added if all(token < vocab_size for token in added) else []


def _known(tokenizer: Tokenizer, text: str, vocab_size: int) -> list[int]:
    try:
        tokens = encode(tokenizer, text, "the bundled text")
    except TokenizerError:
        return []
    return [token for token in tokens if token < vocab_size]
