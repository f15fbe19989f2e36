"""Finishing a file of an artifact: its hash, its entry in the manifest, its way to the disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from ingot.artifact.hashing import hash_fd
from ingot.artifact.manifest import FileEntry
from ingot.artifact.tensors import read_header
from ingot.artifact.tree import open_file

if TYPE_CHECKING:
    from concurrent.futures import Future


def hashed_entry(
    root: Path, name: str, stopped: Callable[[], bool], written: Event | None
) -> FileEntry:
    """A file's entry in the manifest; see `hash_fd`. Worth nothing once `stopped` says so."""
    fd = open_file(root, name)
    try:
        sha256 = hash_fd(fd, stopped, written)
        weights = name.endswith(".safetensors")
        return FileEntry(
            size=os.fstat(fd).st_size,
            sha256=sha256,
            header_sha256=read_header(fd, name).header_sha256 if weights else "",
        )
    finally:
        os.close(fd)


def bring_to_disk(
    root: Path, name: str, stopped: Callable[[], bool], entry: Future[FileEntry]
) -> None:
    """Brings a file to the disk once it has its entry. One that has none, such as a link, is left
    alone, and so is any where `stopped` says so."""
    from concurrent.futures import wait

    wait([entry])
    if not stopped() and not entry.cancelled() and entry.exception() is None:
        make_durable(root / name, 0o644)


def make_durable(path: Path, mode: int | None) -> None:
    """Brings a file or folder to the disk, and gives it that mode if there is one."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if mode is not None:
            os.fchmod(fd, mode)  # the same whatever the umask
        os.fsync(fd)
    finally:
        os.close(fd)
