"""Files written in whole chunks, whatever pieces their bytes come in."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingot.targets import chunked_file
from ingot.targets.chunked_file import ChunkedFile

CHUNK = 16


@pytest.fixture(autouse=True, scope="module")
def small_chunks():
    before = chunked_file.CHUNK_BYTES
    chunked_file.CHUNK_BYTES = CHUNK
    yield
    chunked_file.CHUNK_BYTES = before


class Recorder:
    """What it was given, write by write; takes at most `most` bytes of one."""

    def __init__(self, most: int) -> None:
        self.writes: list[bytes] = []
        self.most = most

    def write(self, data: memoryview) -> int:
        self.writes.append(bytes(data[: self.most]))
        return len(self.writes[-1])


@settings(deadline=None, derandomize=True, database=None)
@given(st.lists(st.binary(max_size=3 * CHUNK)))
def test_all_writes_but_the_last_are_whole_chunks(pieces: list[bytes]) -> None:
    sink = Recorder(most=1000 * CHUNK)
    with ChunkedFile(sink) as file:
        for piece in pieces:
            file.write(memoryview(piece))
    assert b"".join(sink.writes) == b"".join(pieces)
    assert all(len(data) % CHUNK == 0 for data in sink.writes[:-1])


def test_what_the_system_did_not_take_is_written_again() -> None:
    sink = Recorder(most=5)
    with ChunkedFile(sink) as file:
        file.write(bytes(range(40)))
    assert b"".join(sink.writes) == bytes(range(40))


def test_nothing_more_is_written_after_an_error() -> None:
    sink = Recorder(most=1000)
    file = ChunkedFile(sink)
    file.write(b"held")
    file.__exit__(KeyError, KeyError(), None)
    assert not sink.writes
