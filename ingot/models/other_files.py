"""What files of a model directory other than config.json say of a config."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from ingot.models.checkpoint_files import guess_dtype
from ingot.models.checkpoint_formats.settings import method_of
from ingot.models.config import ModelConfig
from ingot.models.config_file import read_json_object
from ingot.models.fields import Fields
from ingot.models.foreign.config import ForeignConfig
from ingot.models.model_files import has_file

Config = TypeVar("Config", ModelConfig, ForeignConfig)
GENERATION = "generation_config.json"


def with_other_files(config: Config, model_dir: Path) -> Config:
    """A config with token ids of generation_config.json and the format of the weights.

    Raises as `registry.load_config` does.
    """
    if has_file(model_dir / GENERATION):
        config = _with_token_ids(
            config, Fields(read_json_object(model_dir / GENERATION), GENERATION)
        )
    if not config.checkpoint_dtype:
        config = replace(config, checkpoint_dtype=guess_dtype(model_dir) or "float32")
    return replace(config, quantization=method_of(model_dir))


def _with_token_ids(config: Config, generation: Fields) -> Config:
    def merged(first: tuple[int, ...], key: str) -> tuple[int, ...]:
        return tuple(dict.fromkeys(first + generation.token_ids(key)))

    return replace(
        config,
        bos_token_ids=merged(config.bos_token_ids, "bos_token_id"),
        eos_token_ids=merged(config.eos_token_ids, "eos_token_id"),
    )
