"""The bytes that tokens are spelled by: `Ġa` stands for 20 61, and `<0xE4>` for E4."""

from __future__ import annotations

import codecs
import re

from ingot.artifact.byte_letters import bytes_of

_BYTE_TOKEN = re.compile(r"^<0x[0-9A-Fa-f]{2}>$")


def is_byte(spelling: str | None) -> bool:
    """Returns whether a token stands for one byte, as `<0xE4>` does."""
    return spelling is not None and _BYTE_TOKEN.match(spelling) is not None


def spelled_bytes(spelling: str) -> bytes:
    """The bytes that a token is spelled by; none where its spelling is not one of bytes."""
    if is_byte(spelling):
        return bytes([int(spelling[3:5], 16)])
    return bytes_of(spelling) or b""


def num_open_bytes(data: bytes) -> int:
    """Counts the bytes of an incomplete UTF-8 character at the end."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    return len(decoder.getstate()[0])
