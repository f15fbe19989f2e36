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
# Key of a config.json: rows of a head that are not those of the embedding; see `ModelConfig`.
HEAD_ROWS = "head_rows"
GGUF, PTH = ".gguf", ".pth"  # end the names of files that are whole models
# The vocabulary of RWKV models, of which tokenizer.json is made where there is none.
WORLD = re.compile(r"rwkv_vocab_v\d+\.txt")
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def small_files(names: Iterable[str]) -> list[str]:
    """Files of a repository that tell its config and its tokenizer."""
    known = {CONFIG, *TOKENIZER_FILES, *SIDE_FILES, MODULES, PROMPTS, SENTENCE_CONFIG}
    return [name for name in names if name in known or _is_small(*name.rpartition("/")[::2])]


def has_tokenizer(names: Iterable[str]) -> bool:
    """Returns whether a folder with these files has a tokenizer, or what one is made of."""
    return any(name == TOKENIZER or WORLD.fullmatch(name) for name in names)


def _is_small(folder: str, name: str) -> bool:
    """Returns whether a file of a folder is a chat template, the config of a module, or a
    vocabulary."""
    is_module = name == CONFIG and MODULE_FOLDER.fullmatch(folder)
    is_vocabulary = not folder and WORLD.fullmatch(name)
    return bool(is_module or is_vocabulary) or (folder == TEMPLATES and name.endswith(JINJA))
