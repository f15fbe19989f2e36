"""Messages between replicas and the front, as bytes."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from ingot.artifact.reader import Artifact
from ingot.artifact.tokenizer_config import parsed_config
from ingot.runtime.tokenizer import Tokenizer
from ingot.serve.engine import ModelFacts, Progress
from ingot.serve.isolated.messages import Fault

_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


class Description(Struct, frozen=True):
    """Description of a model for the front: its facts, and the files of its tokenizer."""

    facts: ModelFacts
    files: dict[str, bytes]

    @classmethod
    def of(cls, artifact: Artifact, facts: ModelFacts) -> Description:
        names = (name for name in _FILES if f"tokenizer/{name}" in artifact.manifest.files)
        return cls(facts, {name: artifact.read(f"tokenizer/{name}") for name in names})

    def tokenizer(self) -> Tokenizer | None:
        """Parsed; None where the model has none."""
        data, config, template = (self.files.get(name) for name in _FILES)
        if data is None:
            return None
        return Tokenizer(
            data,
            parsed_config(config or b"{}"),
            chat_template=None if template is None else template.decode(),
            vocab_size=self.facts.vocab_size,
        )


class Said(Struct, frozen=True, array_like=True):
    """Message of a replica on a job: the progress of a step, or the error that ended it."""

    progress: Progress | None = None
    fault: Fault | None = None


encode = msgspec.msgpack.encode
decode_said = msgspec.msgpack.Decoder(Said).decode
decode_description = msgspec.msgpack.Decoder(Description).decode
