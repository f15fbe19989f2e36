"""What a model's own generation_config.json asks of the sampler."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ingot.errors import ArtifactError

if TYPE_CHECKING:
    from ingot.artifact.reader import Artifact

FILE = "tokenizer/generation_config.json"
GREEDY: dict[str, Any] = {"temperature": 0.0}
NAMES = ("temperature", "top_k", "top_p")


def sampling_defaults(artifact: Artifact) -> dict[str, Any]:
    """Fields of SamplingParams: those of the model if it asks for sampling, or else greedy.

    Raises:
        ArtifactError: a generation_config.json that is not a JSON object.
    """
    if FILE not in artifact.manifest.files:
        return dict(GREEDY)
    try:
        config = json.loads(artifact.read(FILE))
    except ValueError as error:
        raise ArtifactError(f"{FILE}: {error}", hint="Repair it and compile again.") from error
    if not isinstance(config, dict):
        raise ArtifactError(f"{FILE} is not a JSON object", hint="Repair it and compile again.")
    if not config.get("do_sample", False):
        return dict(GREEDY)
    return {name: config[name] for name in NAMES if config.get(name) is not None}
