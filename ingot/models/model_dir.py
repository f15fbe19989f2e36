"""A model directory as a value: which files it has, and what they say.

It is made once, where a path comes in, and handed to everyone who asks anything of the directory.
A GGUF file stands for a directory, and so does a .pth file of BlinkDL's: its small files are made
of what it says, and messages name them as if it were one, as in `model.gguf/config.json`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ingot.errors import ConfigError, ModelDirError, TokenizerError
from ingot.files import read_regular
from ingot.models.checkpoints.formats.settings import QuantizationKeys, settings_of
from ingot.models.file_names import (
    CONFIG,
    HEAD_ROWS,
    JINJA,
    MODULE_FOLDER,
    MODULES,
    TEMPLATES,
    TOKENIZER,
)
from ingot.models.json_object import parse_json_object
from ingot.models.other_formats import refuse_other_format
from ingot.models.single_files import is_single, room_of
from ingot.models.world.files import WorldFiles, needs_world

# What speaks codes, and says nothing of it in config.json.
SPEAK_CODES = (["RWKV7ForSpeech"],)
MAX_JSON_BYTES = 64 * 2**20
# Gets the name of a small file and how large it may be.
Read = Callable[[str, int], bytes]


@dataclass(frozen=True, slots=True, eq=False)
class ModelDir:
    """A model directory. Each of its small files is read once, when first asked for.

    Attributes:
        path: the folder, or the file that is a model.
        names: its files, and those of the folders of further chat templates and of modules as
            `folder/name`.
    """

    path: Path
    names: frozenset[str]
    _read: Read = field(repr=False)
    _bytes: dict[str, bytes] = field(default_factory=dict, repr=False)
    _objects: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)

    @classmethod
    def open(cls, path: Path) -> ModelDir:
        """The model directory at a path.

        Raises:
            ModelDirError: it is no readable directory.
            CheckpointError: it is a model in a format of another program.
            UnsupportedModelError: a file of a model that is not supported.
        """
        hint = "give a directory with config.json, *.safetensors and tokenizer.json"
        try:
            found = cls.at(path)
        except FileNotFoundError as error:
            raise ModelDirError(f"{path} does not exist", hint=hint) from error
        except NotADirectoryError as error:
            refuse_other_format(path)
            raise ModelDirError(f"{path} is not a directory", hint=hint) from error
        except (OSError, ValueError) as error:  # ValueError: a NUL character in the path
            raise ModelDirError(f"{str(path)!r} cannot be read: {error}", hint=hint) from error
        if not found.has(CONFIG):
            refuse_other_format(path)
        return found

    @classmethod
    def at(cls, path: Path) -> ModelDir:
        """Opens any folder, without the checks of `open`. Raises OSError where there is none."""
        if is_single(path):
            small = room_of(path).SmallFiles(path)
            return cls(path, frozenset(small.names), small)
        names = [*os.listdir(path), *_templates(path), *_modules(path)]
        made = WorldFiles(path, names) if needs_world(names) else None
        of_world = made.names if made else ()

        def read(name: str, most: int) -> bytes:
            return made(name) if made and name in of_world else read_regular(path / name, most)

        return cls(path, frozenset([*names, *of_world]), read)

    @property
    def is_single(self) -> bool:
        """True if it is a file."""
        return is_single(self.path)

    @property
    def name(self) -> str:
        """Name of the model: owner/name in the hub's cache, else that of its folder or file."""
        if self.is_single:
            return re.sub(r"-\d{5}-of-\d{5}$", "", self.path.stem)
        folder = self.path.resolve()
        repository = folder.parent.parent.name
        if folder.parent.name == "snapshots" and repository.startswith("models--"):
            return repository.removeprefix("models--").replace("--", "/", 1)
        return folder.name

    def has(self, name: str) -> bool:
        """Returns whether there is a small file of that name, or anything under it."""
        return name in self.names

    def read(self, name: str, max_bytes: int) -> bytes:
        """The bytes of a small file.

        Raises OSError for one that is missing, unreadable, larger or no regular file, and the
        errors of what it is made of.
        """
        if name not in self._bytes:
            self._bytes[name] = self._read(name, max_bytes)
        return self._bytes[name]

    def json_bytes(self, name: str) -> bytes:
        """The bytes of a JSON file.

        Raises ModelDirError when it is missing, unreadable, larger than 64 MiB or no regular file.
        """
        path = self.path / name
        try:
            return self.read(name, MAX_JSON_BYTES)
        except FileNotFoundError as error:
            raise ModelDirError(
                f"{path.parent} has no {path.name}",
                hint="a model directory needs config.json as Hugging Face writes it",
            ) from error
        except OSError as error:
            raise ModelDirError(
                f"{path} cannot be read: {error.strerror}",
                hint="it must be a regular file that you may read; fetch it again",
            ) from error

    def json(self, name: str) -> dict[str, Any]:
        """The object in a JSON file, which is shared: nobody changes it.

        Raises:
            ModelDirError: as `json_bytes` does.
            ConfigError: it is not a JSON object, or repeats a key.
        """
        if name not in self._objects:
            data, infinite = self.json_bytes(name), name == CONFIG
            self._objects[name] = parse_json_object(data, name, infinite=infinite)
        return self._objects[name]

    @property
    def config(self) -> dict[str, Any]:
        """The object in config.json. Raises as `json` does."""
        return self.json(CONFIG)

    @property
    def quantization(self) -> QuantizationKeys | None:
        """Quantization settings of config.json; None where it has none.

        None also where it cannot be read: whoever reads the config says so. Raises ConfigError for
        settings of a wrong type.
        """
        try:
            values = self.config
        except ModelDirError:
            return None
        return settings_of(values)

    def check(self) -> None:
        """Raises ModelDirError, ConfigError or TokenizerError for what shows before PyTorch is
        imported, which takes seconds: config.json is missing or no JSON; there is no tokenizer."""
        self.json(CONFIG)
        self.check_tokenizer()

    @property
    def speaks_codes(self) -> bool:
        """True if its head gives logits for other tokens than it reads: no tokenizer can have
        both."""
        try:
            values = self.config if self.has(CONFIG) else {}
        except ConfigError:  # which whoever reads it for itself is told
            return False
        return HEAD_ROWS in values or values.get("architectures") in SPEAK_CODES

    def check_tokenizer(self) -> None:
        """Raises TokenizerError where there is no tokenizer, and needs to be one."""
        if not self.has(TOKENIZER) and not self.speaks_codes:
            raise no_tokenizer(str(self.path))


def no_tokenizer(where: str) -> TokenizerError:
    """The error of a model that has none; `where` is what the message calls the model."""
    return TokenizerError(
        f"{where} has no {TOKENIZER}",
        hint="ingot reads tokenizers in the format of the `tokenizers` library. Save one with "
        "transformers: AutoTokenizer.from_pretrained(...).save_pretrained(directory).",
    )


def _templates(path: Path) -> list[str]:
    folder = path / TEMPLATES
    if not folder.is_dir():
        return []
    return [f"{TEMPLATES}/{name}" for name in os.listdir(folder) if name.endswith(JINJA)]


def _modules(path: Path) -> list[str]:
    """The files of the modules that sentence-transformers adds to a model."""
    if not (path / MODULES).is_file():
        return []
    folders = [path / name for name in os.listdir(path) if MODULE_FOLDER.fullmatch(name)]
    return [f"{each.name}/{file}" for each in folders if each.is_dir() for file in os.listdir(each)]
