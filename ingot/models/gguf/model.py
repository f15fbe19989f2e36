"""A GGUF file, or the files that one model was split into, as a model directory.

The small files of a model directory are made from the metadata. They are named as if the GGUF file
were the directory: `model.gguf/config.json`.
"""

from __future__ import annotations

import json
import os
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingot.errors import CheckpointError, TokenizerError
from ingot.files import read_regular
from ingot.models.checkpoints.mapped_file import TensorInfo, damaged
from ingot.models.file_names import CONFIG, GENERATION, TOKENIZER, TOKENIZER_CONFIG
from ingot.models.gguf.config import (
    architecture_of,
    config_values,
    generation_values,
    tokenizer_values,
)
from ingot.models.gguf.container import GgufFile
from ingot.models.gguf.metadata import Metadata
from ingot.models.gguf.names import part_names
from ingot.models.gguf.tensors import checkpoint_tensors
from ingot.models.gguf.tokenizer import tokenizer_json

FILES = (CONFIG, TOKENIZER, TOKENIZER_CONFIG, GENERATION)
_MAX_TOKENIZER_BYTES = 2**28
_MAX_FREQUENCIES = 2**15  # half of the largest head


def read_files(path: Path) -> list[Path]:
    """The files that exist of those that a compile of a model may read."""
    files = [path.parent / name for name in (*part_names(path.name), TOKENIZER)]
    return [file for file in files if file.is_file()]


def open_files(path: Path) -> tuple[GgufFile, ...]:
    """The files of a model, with its tensors by the names of the checkpoint.

    Raises CheckpointError for files that are missing, damaged or of several models, and
    UnsupportedModelError for an architecture that is not known.
    """
    files: list[GgufFile] = []
    try:
        for name in part_names(path.name):
            files.append(GgufFile(path.parent / name))
        metadata = _metadata(files)
        spelled = architecture_of(metadata)
        for file in files:
            file.tensors = checkpoint_tensors(file.tensors, metadata, spelled)
    except BaseException:
        for file in files:
            file.close()
        raise
    return tuple(files)


class SmallFiles:
    """The small files of a model, made of its metadata, which are read once."""

    names = FILES

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, name: str, max_bytes: int = 0) -> bytes:
        """The content of a file of the model directory, whatever its size.

        Raises FileNotFoundError for others than `FILES`, and the errors of a model that cannot be
        read.
        """
        if name not in FILES:
            raise FileNotFoundError(2, os.strerror(2), str(self._path / name))
        metadata, numbers = self._headers
        if name == TOKENIZER:
            return _tokenizer(metadata)
        values: dict[str, Any]
        if name == CONFIG:
            values = config_values(metadata, numbers.__getitem__)
        elif name == GENERATION:
            values = generation_values(metadata)
        else:
            values = tokenizer_values(metadata)
        return json.dumps(values, ensure_ascii=False).encode()

    @cached_property
    def _headers(self) -> tuple[Metadata, dict[str, NDArray[np.float32]]]:
        """The metadata, and the numbers of the tensors that the config needs."""
        files = [GgufFile(self._path.parent / name) for name in part_names(self._path.name)]
        try:
            metadata = _metadata(files)
            return metadata, {
                name: _numbers(file, info)
                for file in files
                for name, info in file.tensors.items()
                if name.startswith("rope_")
            }
        finally:
            for file in files:
                file.close()


def _metadata(files: list[GgufFile]) -> Metadata:
    """The metadata of a model. Raises CheckpointError for files that do not belong together."""
    tensors: dict[str, TensorInfo] = {}
    for number, file in enumerate(files):
        # A count of 0 says that a file is whole: llama-gguf-split merges so.
        count = file.metadata.get("split.count", len(files))
        place = file.metadata.get("split.no", number) if count else 0
        if (place, count or 1) != (number, len(files)):
            raise CheckpointError(
                f"{file.path} says that it is file {place} of {count}, counted from 0",
                hint="give a model's files the names that they were made with, "
                "such as NAME-00001-of-00003.gguf",
            )
        for name, info in file.tensors.items():
            if name in tensors:
                raise damaged(file.path, f"has the tensor {name} of another file again")
            tensors[name] = info
    return Metadata(files[0].path, files[0].metadata, tensors)


def _numbers(file: GgufFile, info: TensorInfo) -> NDArray[np.float32]:
    """A tensor of float32; empty for another type."""
    stop = min(info.stop, info.start + _MAX_FREQUENCIES * 4)
    data = file.bytes(info.start, stop).tobytes() if info.dtype == "F32" else b""
    return np.frombuffer(data, np.dtype("<f4"))


def _tokenizer(metadata: Metadata) -> bytes:
    """tokenizer.json from the metadata, or the file of that name beside a GGUF file of which it
    cannot be made."""
    try:
        return tokenizer_json(metadata)
    except TokenizerError:
        try:
            beside = read_regular(metadata.path.parent / TOKENIZER, _MAX_TOKENIZER_BYTES)
        except OSError:
            beside = b""
        if not beside:
            raise
    return beside
