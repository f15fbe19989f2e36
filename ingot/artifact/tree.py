"""The files of an artifact: which names are allowed, which exist, and how to open one."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ingot.errors import ArtifactError
from ingot.files import open_regular

MANIFEST = "manifest.json"
UNFINISHED = re.compile(r"^\..*\.tmp-\d+-[0-9a-f]+$")  # the writer's temporary folders
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,127}(/[A-Za-z0-9][A-Za-z0-9._+-]{0,127}){0,7}$")


def is_artifact(path: Path) -> bool:
    """Tells whether that folder claims to be an artifact; a model directory has no manifest."""
    return os.path.isfile(path / MANIFEST)


def check_name(name: str) -> None:
    """Raises ArtifactError for a path that is not plain, relative and inside the artifact."""
    if not _NAME.match(name) or name.endswith("\n"):
        raise ArtifactError(f"{name!r} is not a file name that an artifact can hold")


def list_files(root: Path) -> set[str]:
    """Relative paths of all files under `root`.

    Raises ArtifactError for symbolic links, devices, pipes and names that no artifact has.
    """
    found: set[str] = set()
    folders = [""]
    while folders:
        folder = folders.pop()
        with os.scandir(root / folder) as entries:
            for entry in entries:
                name = f"{folder}/{entry.name}" if folder else entry.name
                check_name(name)
                if entry.is_dir(follow_symlinks=False):
                    folders.append(name)
                elif entry.is_file(follow_symlinks=False):
                    found.add(name)
                else:
                    raise ArtifactError(f"{name} is not a regular file")
    return found


def open_file(root: Path, name: str) -> int:
    """Opens a file for reading and returns its descriptor, which the caller closes.

    Raises ArtifactError if it is missing, unreadable or not a regular file.
    """
    try:
        return open_regular(root / name, os.O_NOFOLLOW)
    except OSError as error:
        raise ArtifactError(f"{name}: {error.strerror}") from error
