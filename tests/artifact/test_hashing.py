"""Hashes of files, against hashlib."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest

from ingot.artifact import hashing
from ingot.artifact.hashing import CHUNK_BYTES, hash_fd, hash_file, in_threads
from tests.support.open_files import open_files


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1])
def test_a_file_is_hashed_from_its_start_and_stays_where_it_was(tmp_path: Path, size: int) -> None:
    path = tmp_path / "file"
    data = os.urandom(size)
    path.write_bytes(data)
    with path.open("rb") as file:
        place = file.seek(size // 2)
        assert hash_fd(file.fileno()) == hashlib.sha256(data).hexdigest()
        assert os.lseek(file.fileno(), 0, os.SEEK_CUR) == place


def test_reads_may_give_less_than_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, pread = tmp_path / "file", os.pread
    path.write_bytes(bytes(range(256)) * 20)
    monkeypatch.setattr(os, "pread", lambda fd, count, at: pread(fd, min(count, 1000), at))
    assert hash_file(path) == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_file_that_grows_is_hashed_to_where_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each piece is written once the reader has found nothing more."""
    path, pread, written = tmp_path / "file", os.pread, Event()
    pieces = [b"a" * 3000, b"b", os.urandom(70_000)]
    expected = hashlib.sha256(b"".join(pieces)).hexdigest()

    def reading(fd: int, count: int, at: int) -> bytes:
        found = pread(fd, min(count, 1000), at)
        if not found and pieces:
            file.write(pieces.pop(0))
            file.flush()
            if not pieces:  # the last bytes come just before the end is told
                written.set()
        return found

    monkeypatch.setattr(os, "pread", reading)
    monkeypatch.setattr(hashing, "LOOK_SECONDS", 0.0)
    with path.open("w+b") as file:
        assert hash_fd(file.fileno(), written=written) == expected
    # Negative control: a file that is taken for whole is hashed as far as it goes.
    pieces.append(b"late")
    with path.open("w+b") as file:
        assert hash_fd(file.fileno()) == hashlib.sha256(b"").hexdigest()


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")
    with pytest.raises(OSError, match="symbolic links"):
        hash_file(tmp_path / "link")
    before = open_files()
    assert hash_file(tmp_path / "file") == hashlib.sha256(b"x").hexdigest()
    assert open_files() <= before


def test_results_and_errors_come_in_the_order_of_the_items() -> None:
    assert in_threads(lambda n, _: str(n), range(50)) == [str(n) for n in range(50)]

    def refuse(number: int, stopped: Callable[[], bool]) -> None:
        if number > 3:
            raise ValueError(number)

    with pytest.raises(ValueError, match=r"^4$"):
        in_threads(refuse, range(9))


def test_threads_learn_that_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C would else end the wait when they have read a file of gigabytes to its end."""
    monkeypatch.setattr(hashing, "usable_processors", lambda: 2)
    begun, told = Event(), []

    def work(number: int, stopped: Callable[[], bool]) -> None:
        if number == 0:
            begun.wait()
            raise KeyboardInterrupt
        begun.set()
        while not stopped():
            pass
        told.append(number)

    with pytest.raises(KeyboardInterrupt):
        in_threads(work, [0, 1])
    assert told == [1]
