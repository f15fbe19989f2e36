"""What a model's own generation_config.json asks of the sampler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import msgspec

from ingot.artifact.reader import Artifact
from ingot.errors import ArtifactError, RequestError, UsageError
from ingot.runtime.params import SamplingParams

FILE = "tokenizer/generation_config.json"
Source = Literal["auto", "vllm"]

# As the file spells them, and as SamplingParams does.
_NAMES = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationConfig:
    """What the file says; nothing, where there is none.

    Attributes:
        draws: whether the model asks for tokens to be drawn (`do_sample`).
        fields: the fields of SamplingParams that the file sets.
    """

    draws: bool = False
    fields: Mapping[str, Any] = field(default_factory=dict)

    def sampling_params(self) -> SamplingParams:
        """vLLM's defaults with these fields, whether the model asks for draws or not.

        Raises ArtifactError for a value that is out of range.
        """
        try:
            return SamplingParams(**self.fields)
        except RequestError as error:
            raise ArtifactError(
                f"{FILE}: {error.found}",
                hint="Repair it and compile again; or, in Python, give SamplingParams or "
                "LLM(..., generation_config='vllm').",
            ) from error


def read_generation_config(artifact: Artifact, source: Source = "auto") -> GenerationConfig:
    """What an artifact's file says; with "vllm" it is not read, and says nothing.

    Raises ArtifactError for a file that is not a JSON object, and UsageError for another source.
    """
    if source not in get_args(Source):
        raise UsageError(
            f"generation_config is {source!r:.80}",
            hint="Supported: 'auto', which is the model's own file, and 'vllm', which is none.",
        )
    if source == "vllm" or FILE not in artifact.manifest.files:
        return GenerationConfig()
    try:
        found = msgspec.json.decode(artifact.read(FILE), type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ArtifactError(f"{FILE}: {error}", hint="Repair it and compile again.") from error
    return GenerationConfig(
        draws=bool(found.get("do_sample")),
        fields={ours: found[name] for name, ours in _NAMES.items() if found.get(name) is not None},
    )
