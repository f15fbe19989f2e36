"""Locks: who waits for whom, what is left of them, and where there are none."""

from __future__ import annotations

import errno
import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from ingot.artifact import lock
from ingot.artifact.lock import file_lock, hold, unheld
from tests.support.open_files import open_files


def locked(path: Path) -> int:
    """A descriptor of the file that holds its lock, as another process would."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


def test_a_lock_is_a_file_that_others_may_read_and_that_goes(tmp_path: Path) -> None:
    before, umask = open_files(), os.umask(0)
    try:
        with file_lock(tmp_path / "lock"):
            assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(umask)
    assert list(tmp_path.iterdir()) == [] and open_files() <= before


def test_who_waits_is_told_once_however_often_the_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each wait ends with a file that has lost its name to that of the next holder."""
    path, told, waits, before = tmp_path / "lock", [], [], open_files()
    holders = [locked(path)]
    flock = fcntl.flock

    def waiting(fd: int, operation: int) -> None:
        if operation == fcntl.LOCK_EX:
            waits.append(fd)
            path.unlink()
            if len(waits) < 3:
                holders.append(os.open(path, os.O_RDWR | os.O_CREAT))
                flock(holders[-1], fcntl.LOCK_EX)
            os.close(holders.pop(0))
        flock(fd, operation)

    monkeypatch.setattr(lock.fcntl, "flock", waiting)
    with file_lock(path, on_wait=lambda: told.append(1)):
        assert len(waits) == 3 and told == [1]
    assert not path.exists() and holders == [] and open_files() <= before


def test_a_lock_that_lost_its_file_ends_like_any_other(tmp_path: Path) -> None:
    before = open_files()
    with file_lock(tmp_path / "lock"):
        (tmp_path / "lock").unlink()
    assert open_files() <= before


def test_a_lock_whose_file_cannot_go_is_free_at_its_end(tmp_path: Path) -> None:
    path, before = tmp_path / "lock", open_files()

    def replaced() -> None:
        with file_lock(path):
            path.unlink()
            path.mkdir()

    with pytest.raises(IsADirectoryError):
        replaced()
    assert open_files() <= before


def test_who_does_not_want_to_wait_leaves_the_lock_to_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    holder, before = locked(path), open_files()

    def impatient() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), file_lock(path, on_wait=impatient):
        pass
    assert path.exists() and open_files() <= before
    os.close(holder)


def test_a_link_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic links"), file_lock(tmp_path / "lock"):
        pass
    assert not (tmp_path / "precious").exists()


def test_many_may_hold_a_folder_and_nobody_removes_it_meanwhile(tmp_path: Path) -> None:
    before = open_files()
    one, other = hold(tmp_path), hold(tmp_path)
    for fd in (one, other):
        with unheld(tmp_path) as free:
            assert not free
        os.close(fd)
    with unheld(tmp_path) as free, unheld(tmp_path) as free_for_another:
        assert free and not free_for_another
    assert open_files() <= before


def test_who_comes_during_a_removal_waits_and_then_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, asked = fcntl.flock, Event()

    def asking(fd: int, operation: int) -> None:
        if operation & fcntl.LOCK_SH:
            asked.set()
        flock(fd, operation)

    monkeypatch.setattr(lock.fcntl, "flock", asking)
    with ThreadPoolExecutor(1) as pool:
        with unheld(tmp_path) as free:
            holding = pool.submit(hold, tmp_path)
            assert free and asked.wait(60)
        fd = holding.result()
    with unheld(tmp_path) as free:
        assert not free
    os.close(fd)


def test_only_a_folder_can_be_held(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name, error in (("file", NotADirectoryError), ("none", FileNotFoundError)):
        with pytest.raises(error):
            hold(tmp_path / name)
        with pytest.raises(error), unheld(tmp_path / name):
            pass


def test_without_locks_a_folder_can_be_used_and_nobody_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(lock.fcntl, "flock", no_locks)
    os.close(hold(tmp_path))
    with unheld(tmp_path) as free:
        assert free


def test_a_lock_is_held_until_its_file_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever got it before would hold a file that others do not see."""
    path, free, unlink = tmp_path / "lock", list[Path](), Path.unlink

    def tried(self: Path, **given: bool) -> None:
        with self.open() as other:
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
                free.append(self)
            except BlockingIOError:
                pass
        unlink(self, **given)

    monkeypatch.setattr(Path, "unlink", tried)
    with file_lock(path):
        pass
    assert free == [] and not path.exists()
