"""Names of the files of a model directory."""

from __future__ import annotations

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
GGUF = ".gguf"  # ends the name of a file that is a whole model
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def small_files(names: Iterable[str]) -> list[str]:
    """Files of a repository that tell its config and its tokenizer."""
    known = {CONFIG, *TOKENIZER_FILES, *SIDE_FILES}
    return [n for n in names if n in known or (n.startswith(f"{TEMPLATES}/") and n.endswith(JINJA))]
