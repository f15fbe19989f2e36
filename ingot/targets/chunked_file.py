"""Writes a file so that the system can keep it in huge pages."""

from __future__ import annotations

from typing import Protocol

CHUNK_BYTES = 2 << 20  # a huge page


class Sink(Protocol):
    def write(self, data: memoryview, /) -> int | None: ...


class ChunkedFile:
    """Passes bytes on to an unbuffered file in whole chunks; only the last can be shorter.

    The page cache keeps a whole chunk from a single write in one huge page, and bytes from two
    writes in small pages. Every process that runs the weights maps them from there. A context
    manager: leaving it without an error writes the rest.
    """

    def __init__(self, file: Sink) -> None:
        self._file = file
        self._held = bytearray()  # less than a chunk

    def write(self, data: bytes | memoryview) -> None:
        rest = memoryview(data)
        if self._held:
            missing = CHUNK_BYTES - len(self._held)
            self._held += rest[:missing]
            rest = rest[missing:]
            if len(self._held) < CHUNK_BYTES:
                return
            self._pass_on(memoryview(bytes(self._held)))
        whole = len(rest) // CHUNK_BYTES * CHUNK_BYTES
        self._pass_on(rest[:whole])
        self._held = bytearray(rest[whole:])

    def __enter__(self) -> ChunkedFile:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None:
            self._pass_on(memoryview(bytes(self._held)))

    def _pass_on(self, data: memoryview) -> None:
        """Writes all of it, although the system may take only a part at a time."""
        while data:
            data = data[self._file.write(data) or 0 :]
