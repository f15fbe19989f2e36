"""The small files that a model with the World vocabulary has beside its config.

Folders of fla have the vocabulary as a text, which the model's own code reads. That code is never
run: tokenizer.json is made of the text, and how these models talk is known.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from ingot.files import read_regular
from ingot.models.file_names import (
    GENERATION,
    TEMPLATE,
    TOKENIZER,
    TOKENIZER_CONFIG,
    WORLD,
)
from ingot.models.world.vocabulary import MAX_BYTES, shipped, tokenizer_json

# A conversation as these models were trained on it, and where an answer ends.
CONVERSATION = (
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}System: {{ message['content'] | trim }}\n\n"
    "{% elif message['role'] == 'user' %}User: {{ message['content'] | trim }}\n\n"
    "{% elif message['role'] == 'assistant' %}Assistant: {{ message['content'] | trim }}\n\n"
    "{% else %}{{ raise_exception('Roles are system, user and assistant.') }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
END, STOP = 0, "\n\nUser"


def needs_world(names: Iterable[str]) -> bool:
    """Returns whether a folder has a vocabulary, and no tokenizer.json."""
    names = [*names]
    return TOKENIZER not in names and any(map(WORLD.fullmatch, names))


def vocabulary_in(folder: Path) -> Path | None:
    """The vocabulary in a folder; of several the last by name."""
    found = sorted(name for name in os.listdir(folder) if WORLD.fullmatch(name))
    return folder / found[-1] if found else None


class WorldFiles:
    """The files that are made of the vocabulary in a folder, or else of the one that is shipped.

    `names` are those that the folder does not have itself.
    """

    def __init__(self, folder: Path, there: Iterable[str] = ()) -> None:
        self._vocabulary = vocabulary_in(folder)
        has = {*there}
        if TOKENIZER_CONFIG in has and b'"chat_template"' in _config_of(folder):
            has.add(TEMPLATE)
        made = (TOKENIZER, TOKENIZER_CONFIG, TEMPLATE, GENERATION)
        self.names = tuple(name for name in made if name not in has)

    def __call__(self, name: str) -> bytes:
        """The content of a file. Raises TokenizerError, and OSError for a vocabulary that cannot
        be read."""
        if name == TOKENIZER:
            where = self._vocabulary
            data = read_regular(where, MAX_BYTES) if where else shipped()
            return tokenizer_json(data, str(where or "the World vocabulary"))
        if name == TEMPLATE:
            return CONVERSATION.encode()
        values = {"eos_token_id": END, "stop_strings": [STOP]} if name == GENERATION else {}
        return json.dumps(values).encode()


def _config_of(folder: Path) -> bytes:
    """tokenizer_config.json; nothing where it cannot be read, which its reader says."""
    try:
        return read_regular(folder / TOKENIZER_CONFIG, MAX_BYTES)
    except OSError:
        return b""
