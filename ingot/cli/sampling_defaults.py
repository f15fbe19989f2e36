"""How `ingot run` samples unless its user says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ingot.artifact.reader import Artifact

GREEDY: dict[str, Any] = {"temperature": 0.0}


def sampling_defaults(artifact: Artifact) -> dict[str, Any]:
    """Fields of SamplingParams: those of the model if it asks for sampling, or else greedy.

    How long an answer may become is the command line's own choice. Raises ArtifactError.
    """
    from ingot.runtime.generation_config import read_generation_config

    config = read_generation_config(artifact)
    fields = config.fields if config.draws else GREEDY
    return {name: value for name, value in fields.items() if name != "max_tokens"}
