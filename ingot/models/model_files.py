"""The small files of a model: those of its directory, or made of the metadata of a GGUF file.

A GGUF file stands for a directory, so `model.gguf/config.json` names what its metadata say of the
config.
"""

from __future__ import annotations

import os
from pathlib import Path

from ingot.files import read_regular
from ingot.models.file_names import GGUF


def is_gguf(path: Path) -> bool:
    """Whether a path is that of a GGUF file, by its name."""
    return path.suffix == GGUF and os.path.isfile(path)


def has_file(path: Path) -> bool:
    """Whether a model has that small file, or anything under its name."""
    if is_gguf(path.parent):
        from ingot.models.gguf.model import FILES

        return path.name in FILES
    return os.path.lexists(path)


def read_file(path: Path, max_bytes: int) -> bytes:
    """The bytes of a small file.

    Raises OSError for one that is missing, unreadable, larger or no regular file, and of a GGUF
    file the errors of a model that cannot be read.
    """
    if is_gguf(path.parent):
        from ingot.models.gguf.model import small_file

        return small_file(path.parent, path.name)
    return read_regular(path, max_bytes)
