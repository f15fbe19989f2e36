"""Files that somebody else has put where they are: read, stamped, or refused."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ingot.files import as_path, open_regular, read_regular, stamp, write_whole
from tests.support.odd_files import ODD_FILES, ODD_PATHS, odd_paths
from tests.support.open_files import open_files


@pytest.mark.parametrize("kind", ODD_FILES)
def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path, before = tmp_path / "x", open_files()
    ODD_FILES[kind](path)
    with pytest.raises(OSError) as info:
        read_regular(path, 10)
    assert info.value.filename == str(path) and open_files() <= before


@pytest.mark.parametrize("name", ODD_PATHS)
def test_a_path_that_no_call_takes_is_an_error_like_others(tmp_path: Path, name: str) -> None:
    path = odd_paths(tmp_path)[name]
    with pytest.raises(OSError) as info:
        open_regular(Path(path))
    assert info.value.filename == path


def test_a_file_may_be_as_long_as_is_said(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"12345")
    assert read_regular(path, 5) == b"12345"
    with pytest.raises(OSError, match="larger than 4 bytes") as info:
        read_regular(path, 4)
    assert info.value.errno == errno.EINVAL


def test_links_are_followed_unless_a_flag_says_no(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("1")
    (tmp_path / "link").symlink_to("x")
    assert read_regular(tmp_path / "link", 9) == b"1"
    with pytest.raises(OSError, match="symbolic links"):
        open_regular(tmp_path / "link", os.O_NOFOLLOW)
    fd = open_regular(tmp_path / "x")
    assert not os.get_inheritable(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(fd, b"2")
    os.close(fd)


def test_a_stamp_is_the_size_and_the_time_of_what_a_path_leads_to(tmp_path: Path) -> None:
    path, link = tmp_path / "x", tmp_path / "link"
    path.write_bytes(bytes(7))
    os.utime(path, ns=(1, 1_600_000_000_123_456_789))
    link.symlink_to("x")
    assert stamp(path) == stamp(link) == (7, 1_600_000_000_123_456_789)
    with pytest.raises(FileNotFoundError):
        stamp(tmp_path / "none")


def test_what_can_be_a_path() -> None:
    assert as_path("a/b") == as_path(Path("a/b")) == Path("a/b")
    for value in (None, 5, b"x", ["a"], "a\0b"):
        with pytest.raises(TypeError):
            as_path(value)


def test_what_is_written_goes_through_links_and_into_pipes(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "link").symlink_to("file")
    write_whole(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_bytes() == b"new"
    reading, writing = os.pipe()
    write_whole(Path(f"/proc/self/fd/{writing}"), b"12")
    os.close(writing)
    assert os.read(reading, 9) == b"12"
    os.close(reading)
