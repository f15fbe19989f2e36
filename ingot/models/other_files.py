"""What files of a model directory other than config.json say of a config."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from ingot.errors import ConfigError
from ingot.models.checkpoint_files import guess_dtype
from ingot.models.config import ModelConfig
from ingot.models.fields import Fields
from ingot.models.file_names import GENERATION
from ingot.models.foreign.config import ForeignConfig
from ingot.models.model_dir import ModelDir

Config = TypeVar("Config", ModelConfig, ForeignConfig)


def with_other_files(config: Config, model_dir: ModelDir) -> Config:
    """A config with token ids of generation_config.json and the format of the weights.

    Raises as `registry.load_config` does.
    """
    if model_dir.has(GENERATION):
        config = _with_token_ids(config, Fields(model_dir.json(GENERATION), GENERATION))
    if not config.checkpoint_dtype:
        config = replace(config, checkpoint_dtype=guess_dtype(model_dir) or "float32")
    return replace(config, quantization=method_of(model_dir))


def method_of(model_dir: ModelDir) -> str:
    """The quant_method of a model; "" where it has none, or none that can be read."""
    with suppress(ConfigError):
        if settings := model_dir.quantization:
            return str(settings.get("quant_method", ""))
    return ""


def _with_token_ids(config: Config, generation: Fields) -> Config:
    def merged(first: tuple[int, ...], key: str) -> tuple[int, ...]:
        return tuple(dict.fromkeys(first + generation.token_ids(key)))

    return replace(
        config,
        bos_token_ids=merged(config.bos_token_ids, "bos_token_id"),
        eos_token_ids=merged(config.eos_token_ids, "eos_token_id"),
    )
