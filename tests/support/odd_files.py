"""Things that are no files under the names of files, and paths that no system call takes."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path


def make_socket(path: Path) -> None:
    """A socket; by a short way to it, since the paths of sockets may be no longer than 108."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)


# Each puts something in the place of a file. Reading a pipe waits, reading the device never ends.
ODD_FILES: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "folder": Path.mkdir,
    "socket": make_socket,
    "loop of links": lambda path: path.symlink_to(path.name),
}


def odd_paths(folder: Path) -> dict[str, str]:
    """Paths at which nothing can be, by what is odd about them."""
    (folder / "file").write_text("x")
    (folder / "loop").symlink_to("loop")
    return {
        "NUL": str(folder / "a\0b"),
        "too long": str(folder / ("x" * 300)),
        "below a file": str(folder / "file" / "below"),
        "loop of links": str(folder / "loop" / "below"),
    }


ODD_PATHS = ("NUL", "too long", "below a file", "loop of links")
