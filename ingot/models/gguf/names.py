"""Names of GGUF files: which of them are models, and which one model in parts."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ingot.errors import ModelDirError, listed
from ingot.models.file_names import CONFIG, GGUF

# A model in several files; the first has the metadata.
_PART = re.compile(r"(?P<name>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_PROJECTOR = "mmproj"  # begins the name of what reads images, which is no model of its own


def gguf_in(folder: Path) -> Path | None:
    """The GGUF file of a folder that holds one model, in one file or in parts; None where it has
    none, or a config.json of its own.

    Raises ModelDirError where it has several.
    """
    try:
        names = sorted(os.listdir(folder))
    except (OSError, ValueError):
        return None
    if CONFIG in names and any(name.endswith(".safetensors") for name in names):
        return None
    models = model_names(names)
    if len(models) > 1:
        raise ModelDirError(
            f"{folder} has several GGUF models: {listed(models)}",
            hint=f"give one of them, such as {folder / models[0]}",
        )
    return folder / models[0] if models else None


def model_names(names: list[str]) -> list[str]:
    """The names of GGUF models among those of files; of a model in parts, the first."""

    def begins(name: str) -> bool:
        part = _PART.fullmatch(name)
        is_other = name.rpartition("/")[2].startswith(_PROJECTOR)
        return not is_other and (part is None or int(part["number"]) == 1)

    return [name for name in names if name.endswith(GGUF) and begins(name)]


def part_names(name: str) -> list[str]:
    """The files of a model by the name of one of them."""
    part = _PART.fullmatch(name)
    if part is None:
        return [name]
    count = int(part["count"])
    return [f"{part['name']}-{i:05}-of-{count:05}.gguf" for i in range(1, count + 1)]
