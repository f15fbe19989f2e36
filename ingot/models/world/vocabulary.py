"""The World vocabulary as the `tokenizer.json` that the `tokenizers` library reads.

A text becomes, from left to right, the longest token that its next bytes are. The file has a line
for each token: its id, its bytes as Python writes a string or bytes, and how many these are. Ids
count up from 1, and the first 256 are the single bytes. 0 ends a text and has no bytes.
"""

from __future__ import annotations

import ast
import json
import lzma
import re
from pathlib import Path
from typing import Any

from ingot.artifact.byte_letters import spelled
from ingot.errors import TokenizerError

# Of the package `rwkv` 0.8.32 (ChatRWKV by Bo Peng), Apache License 2.0, compressed.
SHIPPED = Path(__file__).with_name("rwkv_vocab_v20230424.txt.xz")
MAX_BYTES = 16 * 2**20
_PLAIN = re.compile(r"'[^'\\]+'")
# The smallest vocabulary that there is.
BYTES = "".join(f"{b + 1} {bytes([b])!r} 1\n" for b in range(256)).encode()
ROWS = 65536  # of models with the vocabulary that is shipped
END = "<|rwkv_tokenizer_end_of_text|>"  # what token 0 is called


def shipped() -> bytes:
    """The vocabulary of the published World and G1 models."""
    return lzma.decompress(SHIPPED.read_bytes())


def tokenizer_json(data: bytes, where: str) -> bytes:
    """The file. `where` is what messages call the vocabulary. Raises TokenizerError."""
    ids = {END: 0} | {spelled(token): i for i, token in enumerate(tokens_of(data, where), 1)}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    file: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": 0,
                "content": END,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
        ],
        "normalizer": None,
        "pre_tokenizer": {**level, "use_regex": False},
        "post_processor": None,
        "decoder": {**level, "use_regex": False},
        # Taking the longest piece that fits, one after the other, is what this model does.
        "model": {
            "type": "WordPiece",
            "unk_token": END,
            "continuing_subword_prefix": "",
            "max_input_chars_per_word": 2**31,
            "vocab": ids,
        },
    }
    return json.dumps(file, ensure_ascii=False, separators=(",", ":")).encode()


def tokens_of(data: bytes, where: str) -> list[bytes]:
    """The bytes of tokens 1, 2, .. of a vocabulary.

    Raises TokenizerError for a line that is no token, and for ids or tokens that repeat or are
    missing: then a text might have two readings, or none.
    """
    tokens: list[bytes] = []
    try:
        lines = data.decode().rstrip("\r\n").split("\n")
    except UnicodeDecodeError as error:
        raise _wrong(where, f"is no UTF-8: {error}") from error
    for line in lines:
        number, token = _token(line.rstrip("\r"), where)
        if number != len(tokens) + 1:
            raise _wrong(where, f"has id {number} where {len(tokens) + 1} should be")
        tokens.append(token)
    if tokens[:256] != [bytes([byte]) for byte in range(256)]:
        raise _wrong(where, "does not begin with the 256 single bytes")
    if len(set(tokens)) < len(tokens):
        twice = next(token for i, token in enumerate(tokens) if token in tokens[:i])
        raise _wrong(where, f"has the token {twice!r:.60} twice")
    return tokens


def _token(line: str, where: str) -> tuple[int, bytes]:
    """The id and the bytes in a line."""
    number, _, rest = line.partition(" ")
    text, _, length = rest.rpartition(" ")
    try:
        # Most are plain, and parsing tens of thousands as Python takes a second.
        value = text[1:-1] if _PLAIN.fullmatch(text) else ast.literal_eval(text)
        token = value.encode() if isinstance(value, str) else value
        if isinstance(token, bytes) and token and len(token) == int(length):
            return int(number), token
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        pass
    raise _wrong(where, f"has the line {line!r:.60}, which is no token")


def _wrong(where: str, found: str) -> TokenizerError:
    return TokenizerError(
        f"{where} {found}", hint="the file is damaged, or of another program: fetch it again"
    )
