"""Names of the files of a model directory."""

from __future__ import annotations

import re
from collections.abc import Iterable

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
GENERATION = "generation_config.json"
TEMPLATE = "chat_template.jinja"
# What goes into the artifact as it is, where it exists.
TOKENIZER_FILES = (
    TOKENIZER,
    TOKENIZER_CONFIG,
    GENERATION,
    TEMPLATE,
)
# What the tokenizer's config in an artifact has from other files, where they exist.
SPECIAL_TOKENS_MAP = "special_tokens_map.json"
ADDED_TOKENS = "added_tokens.json"
OLD_TEMPLATE = "chat_template.json"
SIDE_FILES = (SPECIAL_TOKENS_MAP, ADDED_TOKENS, OLD_TEMPLATE)
TEMPLATES = "additional_chat_templates"  # a folder
JINJA = ".jinja"
# Of sentence-transformers: what follows the layers of a model, and how texts are given to it.
MODULES = "modules.json"
PROMPTS = "config_sentence_transformers.json"
SENTENCE_CONFIG = "sentence_bert_config.json"
MODULE_FOLDER = re.compile(r"\d+_\w+")
GGUF = ".gguf"  # ends the name of a file that is a whole model
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def small_files(names: Iterable[str]) -> list[str]:
    """Files of a repository that tell its config and its tokenizer."""
    known = {CONFIG, *TOKENIZER_FILES, *SIDE_FILES, MODULES, PROMPTS, SENTENCE_CONFIG}
    return [name for name in names if name in known or _is_small(*name.rpartition("/")[::2])]


def _is_small(folder: str, name: str) -> bool:
    """Returns whether a file of a folder is a chat template, or the config of a module."""
    is_module = name == CONFIG and MODULE_FOLDER.fullmatch(folder)
    return bool(is_module) or (folder == TEMPLATES and name.endswith(JINJA))
