"""Reads the tokenizer of an artifact from its files."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from ingot.artifact.reader import Artifact
from ingot.artifact.tokenizer_config import parsed_config
from ingot.errors import TokenizerError
from ingot.runtime.template_names import named_templates
from ingot.runtime.tokenizer import FILE, Tokenizer

_CONFIG = "tokenizer/tokenizer_config.json"
_TEMPLATE = "tokenizer/chat_template.jinja"


class TokenizerFiles:
    """An artifact's tokenizer, read but not parsed. After that the folder may be moved."""

    def __init__(self, artifact: Artifact) -> None:
        self._artifact = artifact
        self._data, self._config, self._template = (
            artifact.read(name) if name in artifact.manifest.files else None
            for name in (FILE, _CONFIG, _TEMPLATE)
        )

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Parsed. Raises TokenizerError where there is none, or one that cannot be read."""
        if self._data is None:
            raise TokenizerError(
                f"{self._artifact.path} has no tokenizer",
                hint='Give prompts as tokens: {"prompt_token_ids": [...]}, and '
                "SamplingParams(detokenize=False).",
            )
        return Tokenizer(
            self._data,
            parsed_config(self._config or b"{}", _CONFIG),
            chat_template=None if self._template is None else self._template.decode(),
            vocab_size=self._artifact.manifest.model.vocab_size,
        )


def tokenizer_in(folder: Path) -> Tokenizer | None:
    """The tokenizer in a folder of an artifact that is being written; None without a chat template.

    Raises TokenizerError.
    """
    names = (Path(name).name for name in (FILE, _CONFIG, _TEMPLATE))
    data, config, template = (
        (folder / name).read_bytes() if (folder / name).exists() else None for name in names
    )
    settings = parsed_config(config or b"{}", _CONFIG)
    text = None if template is None else template.decode()
    if not named_templates(settings, text):
        return None  # to parse a large vocabulary takes seconds
    return Tokenizer(data or b"", settings, chat_template=text)
