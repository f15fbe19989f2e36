"""Messages in frames: what bytes between two processes are.

A frame is the length of its message, the complement of that, a checksum, and the message as
msgpack. The checksum begins with the number of the frame: one that is damaged, lost, repeated or
out of its order does not pass.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any, Generic, TypeVar

import msgspec

from ingot.errors import ProtocolError

M = TypeVar("M")

_HEADER = struct.Struct("<III")
_ALL = 0xFFFFFFFF
MAX_BYTES = 1 << 30  # of a message


class FrameWriter:
    """Makes the frames of one direction, in their order."""

    def __init__(self) -> None:
        self._count = 0
        self._encoder = msgspec.msgpack.Encoder()

    def frame(self, message: object) -> bytes:
        """Raises TypeError, ValueError or OverflowError for what no message can hold."""
        body = self._encoder.encode(message)
        if len(body) > MAX_BYTES:
            raise ValueError(f"a message of {len(body)} bytes")
        check = zlib.crc32(body, self._count & _ALL)
        self._count += 1
        return _HEADER.pack(len(body), len(body) ^ _ALL, check) + body


class FrameReader(Generic[M]):
    """Finds the messages in the bytes of one direction; `kind` is a union of structs."""

    def __init__(self, kind: Any) -> None:
        self._count = 0
        self._buffer = bytearray()
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(kind)

    def feed(self, data: bytes) -> list[M]:
        """The messages that are complete with these bytes. Raises ProtocolError."""
        buffer, start = self._buffer, 0
        buffer += data
        messages: list[M] = []
        while len(buffer) - start >= _HEADER.size:
            length, complement, check = _HEADER.unpack_from(buffer, start)
            if length ^ complement != _ALL or length > MAX_BYTES:
                raise ProtocolError("bytes that begin no frame")
            begin, start_of_next = start + _HEADER.size, start + _HEADER.size + length
            if len(buffer) < start_of_next:
                break
            messages.append(self._message(bytes(buffer[begin:start_of_next]), check))
            start = start_of_next
        del buffer[:start]
        return messages

    def _message(self, body: bytes, check: int) -> M:
        if zlib.crc32(body, self._count & _ALL) != check:
            raise ProtocolError(f"frame {self._count} is damaged or not the one that comes next")
        self._count += 1
        try:
            return self._decoder.decode(body)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise ProtocolError(f"frame {self._count - 1} holds no message: {error}") from error
