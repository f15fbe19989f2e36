"""A file of BlinkDL's as a model directory.

The small files of a model directory are made of its tensors' shapes. They are named as if the file
were the directory: `model.pth/config.json`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from ingot.models.file_names import CONFIG, HEAD_ROWS
from ingot.models.pth.config import config_values
from ingot.models.pth.container import PthFile
from ingot.models.world.files import WorldFiles, vocabulary_in
from ingot.models.world.vocabulary import ROWS


def open_files(path: Path) -> tuple[PthFile, ...]:
    """The file of a model. Raises CheckpointError."""
    return (PthFile(path),)


def read_files(path: Path) -> list[Path]:
    """The files that a compile of a model reads."""
    beside = vocabulary_in(path.parent)
    return [path, *([beside] if beside else [])]


class SmallFiles:
    """The small files of a model, made of the shapes of its tensors and of a vocabulary.

    Raises CheckpointError and UnsupportedModelError for what is no RWKV-7 model.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with PthFile(path) as file:
            self._config = config_values(path, file.tensors)
        self._world = WorldFiles(path.parent)
        # Another number of rows has another vocabulary, which must lie beside the file.
        has_vocabulary = (
            self._config["vocab_size"] == ROWS or vocabulary_in(path.parent) is not None
        )
        reads_texts = has_vocabulary and HEAD_ROWS not in self._config
        self.names = (CONFIG, *(self._world.names if reads_texts else ()))

    def __call__(self, name: str, max_bytes: int = 0) -> bytes:
        """The content of a file of the model directory, whatever its size.

        Raises FileNotFoundError for others than `names`, and TokenizerError.
        """
        if name not in self.names:
            raise FileNotFoundError(2, os.strerror(2), str(self._path / name))
        return json.dumps(self._config).encode() if name == CONFIG else self._world(name)
