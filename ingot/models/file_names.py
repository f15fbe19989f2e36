"""How the files of a model directory are called."""

from __future__ import annotations

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
# What goes into the artifact as it is, where it exists.
TOKENIZER_FILES = (
    TOKENIZER,
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
)
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
