"""Files that are whole models: those of llama.cpp, and BlinkDL's.

Each kind has a room, whose `model.py` makes the small files of a model directory, opens the
tensors, and says which files those are.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol, cast

from ingot.models.checkpoints.mapped_file import MappedCheckpoint
from ingot.models.file_names import CONFIG, GGUF, PTH
from ingot.models.gguf.names import gguf_in


class SmallFiles(Protocol):
    """The small files of a model by their names; see `ingot.models.model_dir`."""

    @property
    def names(self) -> Iterable[str]: ...

    def __call__(self, name: str, max_bytes: int = 0) -> bytes: ...


class Room(Protocol):
    """What `model.py` of a room has."""

    def SmallFiles(self, path: Path) -> SmallFiles: ...

    def open_files(self, path: Path) -> tuple[MappedCheckpoint, ...]: ...

    def read_files(self, path: Path) -> list[Path]: ...


def is_single(path: Path) -> bool:
    """Returns whether a path is that of a file that is a whole model, by its name."""
    return path.suffix in (GGUF, PTH) and os.path.isfile(path)


def room_of(path: Path) -> Room:
    """What reads a file that is a whole model."""
    found: Any
    if path.suffix == GGUF:
        from ingot.models.gguf import model as found
    else:
        from ingot.models.pth import model as found
    return cast(Room, found)


def single_in(folder: Path) -> Path | None:
    """The file of a folder that is a model by itself: the only one of its kind, beside no
    config.json."""
    if found := gguf_in(folder):
        return found
    try:
        names = os.listdir(folder)
    except (OSError, ValueError):
        return None
    models = [name for name in names if name.endswith(PTH)]
    return folder / models[0] if len(models) == 1 and CONFIG not in names else None
