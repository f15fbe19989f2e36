"""Default sampling: that of generation_config.json, or else the usual one."""

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
    "stop_strings": "stop",
}
_DRAWING = ("temperature", "top_p", "top_k", "min_p")
# For models that do not say how to draw. Without draws small models repeat themselves, and draws
# from the whole vocabulary babble. These are the values of llama.cpp, which people know.
USUAL: Mapping[str, Any] = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationConfig:
    """Contents of generation_config.json; empty without a file.

    Attributes:
        draws: whether the model asks for tokens to be drawn (`do_sample`); None: it does not say.
        fields: the fields of SamplingParams that the file sets.
        usual: how tokens are drawn where the file does not say it.
    """

    draws: bool | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    usual: Mapping[str, Any] = field(default_factory=lambda: USUAL)

    @property
    def defaults(self) -> dict[str, Any]:
        """Fields of SamplingParams for whoever leaves them out, in chats and on servers: the
        file's, or the usual ones where it does not say how to draw; greedy where it asks for that.
        """
        drawing = {name: self.fields[name] for name in _DRAWING if name in self.fields}
        others = {name: v for name, v in self.fields.items() if name not in _DRAWING}
        if self.draws is False:
            return {**others, "temperature": 0.0}
        return {**others, **(drawing or self.usual)}

    def chat_params(self) -> SamplingParams:
        """`defaults`, and an answer as long as it becomes. Raises as `sampling_params` does."""
        return self._params({"max_tokens": None, **self.defaults} if self.usual else self.defaults)

    def sampling_params(self) -> SamplingParams:
        """vLLM's defaults with the fields of the file, whether it asks for draws or not.

        Raises ArtifactError for a value that is out of range.
        """
        return self._params(self.fields)

    def _params(self, fields: Mapping[str, Any]) -> SamplingParams:
        try:
            return SamplingParams(**fields)
        except RequestError as error:
            raise ArtifactError(
                f"{FILE}: {error.found}",
                hint="Repair it and compile again; or, in Python, give SamplingParams or "
                "LLM(..., generation_config='vllm').",
            ) from error


def read_generation_config(artifact: Artifact, source: Source = "auto") -> GenerationConfig:
    """Reads an artifact's generation_config.json; "vllm" reads nothing.

    Raises ArtifactError for a file that is not a JSON object, and UsageError for another source.
    """
    if source not in get_args(Source):
        raise UsageError(
            f"generation_config is {source!r:.80}",
            hint="Supported: 'auto', which is the model's own file, and 'vllm', which is none.",
        )
    if source == "vllm":
        return GenerationConfig(usual={})
    if FILE not in artifact.manifest.files:
        return GenerationConfig()
    try:
        found = msgspec.json.decode(artifact.read(FILE), type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ArtifactError(f"{FILE}: {error}", hint="Repair it and compile again.") from error
    return GenerationConfig(
        draws=None if found.get("do_sample") is None else bool(found["do_sample"]),
        fields={ours: found[name] for name, ours in _NAMES.items() if found.get(name) is not None},
    )
