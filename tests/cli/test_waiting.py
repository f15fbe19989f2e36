"""How long threads waited for a processor, from what the kernel says of them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from ingot.cli.waiting import ThreadTimes


def tasks(folder: Path, **threads: str) -> Path:
    for name, text in threads.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "schedstat").write_text(text)
    return folder


def test_the_share_is_of_all_threads_since_then(tmp_path: Path) -> None:
    """A thread that is new counts from its start, one that has ended does not count."""
    before = ThreadTimes.now(tasks(tmp_path / "a", t1="1000 500 7\n", t2="0 0 0\n", t9="5 5 1\n"))
    after = ThreadTimes.now(
        tasks(tmp_path / "b", t1="1600 700 9\n", t2="100 50 1\n", t3="100 50 1")
    )
    assert (after.ran, after.waited) == (
        {"t1": 1600, "t2": 100, "t3": 100},
        {"t1": 700, "t2": 50, "t3": 50},
    )
    assert after.share_waited(before) == pytest.approx(300 / (300 + 800))
    assert after.share_waited(after) is None


def test_what_the_kernel_does_not_tell_is_unknown(tmp_path: Path) -> None:
    nothing = ThreadTimes.now(tmp_path / "none")
    assert nothing == ThreadTimes({}, {}) and nothing.share_waited(nothing) is None
    (tmp_path / "gone").mkdir()
    assert ThreadTimes.now(tasks(tmp_path, odd="", t1="1 2 3")).ran == {"t1": 1}


def test_of_this_process_it_is_every_thread() -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        ran = ThreadTimes.now().ran
    finally:
        done.set()
        thread.join()
    # A kernel without these figures is allowed, a kernel that tells only some threads is not.
    assert not ran or {str(threading.get_native_id()), str(thread.native_id)} <= ran.keys()
