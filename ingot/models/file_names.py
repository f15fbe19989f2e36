"""How the files of a model directory are called."""

from __future__ import annotations

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
GENERATION = "generation_config.json"
# What goes into the artifact as it is, where it exists.
TOKENIZER_FILES = (
    TOKENIZER,
    TOKENIZER_CONFIG,
    GENERATION,
    "chat_template.jinja",
)
GGUF = ".gguf"  # ends the name of a file that is a whole model
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
