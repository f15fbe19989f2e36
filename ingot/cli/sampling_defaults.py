"""How `ingot run` samples unless its user says so."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ingot.artifact.reader import Artifact

GREEDY: dict[str, Any] = {"temperature": 0.0}
DRAWING = ("temperature", "top_k", "top_p", "min_p")


def sampling_defaults(artifact: Artifact) -> dict[str, Any]:
    """Fields of SamplingParams: those of the model, but greedy unless it asks for sampling.

    How long an answer may become is the command line's own choice. Raises ArtifactError, also for
    a value that is out of range.
    """
    from ingot.runtime.generation_config import read_generation_config

    config = read_generation_config(artifact)
    unused = ("max_tokens",) if config.draws else ("max_tokens", *DRAWING)
    fields = {name: value for name, value in config.fields.items() if name not in unused}
    replace(config, fields=fields).sampling_params()  # raises where one is out of range
    return fields if config.draws else fields | GREEDY
