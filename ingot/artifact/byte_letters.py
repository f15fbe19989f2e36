"""The letters by which byte-level tokenizers spell bytes; source: GPT-2's `bytes_to_unicode`.

Bytes that print stand for themselves; the others follow from 256 on.
"""

from __future__ import annotations

_PRINTING = (*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1))
_HIDDEN = [byte for byte in range(256) if byte not in _PRINTING]
# The letter of each byte, and the byte of each letter.
LETTERS = {byte: chr(byte) for byte in _PRINTING} | {
    byte: chr(256 + number) for number, byte in enumerate(_HIDDEN)
}
BYTES = {letter: byte for byte, letter in LETTERS.items()}


def spelled(token: bytes) -> str:
    """The spelling of bytes."""
    return "".join(LETTERS[byte] for byte in token)


def bytes_of(spelling: str) -> bytes | None:
    """The bytes that a spelling stands for; None for one that is not made of these letters."""
    try:
        return bytes(map(BYTES.__getitem__, spelling))
    except KeyError:
        return None
