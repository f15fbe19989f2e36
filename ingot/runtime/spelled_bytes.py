"""The bytes that tokens are spelled by: `Ġa` stands for 20 61, and `<0xE4>` for E4."""

from __future__ import annotations

import codecs
import re
from functools import cache

_BYTE_TOKEN = re.compile(r"^<0x[0-9A-Fa-f]{2}>$")


def is_byte(spelling: str | None) -> bool:
    """Returns whether a token stands for one byte, as `<0xE4>` does."""
    return spelling is not None and _BYTE_TOKEN.match(spelling) is not None


def spelled_bytes(spelling: str) -> bytes:
    """The bytes that a token is spelled by; none where its spelling is not one of bytes."""
    if is_byte(spelling):
        return bytes([int(spelling[3:5], 16)])
    letters = _byte_letters()
    if not all(letter in letters for letter in spelling):
        return b""
    return bytes(letters[letter] for letter in spelling)


def num_open_bytes(data: bytes) -> int:
    """Counts the bytes of an incomplete UTF-8 character at the end."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    return len(decoder.getstate()[0])


@cache
def _byte_letters() -> dict[str, int]:
    """The letters by which byte-level tokenizers spell bytes; source: GPT-2's `bytes_to_unicode`.

    Bytes that print stand for themselves; the others follow from 256 on.
    """
    printing = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    hidden = [byte for byte in range(256) if byte not in printing]
    letters = {chr(byte): byte for byte in printing}
    return letters | {chr(256 + number): byte for number, byte in enumerate(hidden)}
