"""Reads the keys that decoder-only families share into a ModelConfig."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from ingot.models.checkpoints.formats.settings import SETTINGS
from ingot.models.config import ModelConfig
from ingot.models.fields import Fields
from ingot.models.layer_config import LayerConfig, Mixer, Mlp
from ingot.models.layer_fields import read_num_layers
from ingot.models.noise import LEFTOVERS

_DTYPES = {name: name for name in ("float32", "bfloat16", "float16")} | {
    f"torch.{name}": name for name in ("float32", "bfloat16", "float16")
}
Part = TypeVar("Part")


def parse_decoder(
    fields: Fields,
    *,
    mixer: Mixer | Sequence[Mixer | None] | None,
    mlp: Mlp | Sequence[Mlp | None] | None,
    **decided: Any,
) -> ModelConfig:
    """Reads the common keys of config.json; the arguments are what the family decides.

    Args:
        fields: config.json, with the family's spellings and defaults.
        mixer, mlp: of every layer, or one for each; None where there is none.
        decided: fields of ModelConfig that are not common keys, or stand for them.

    Raises:
        ConfigError: missing, wrong or contradictory values.
    """
    _refuse_foreign(fields)
    num_layers = read_num_layers(fields)
    mixers: Sequence[Mixer | None] = _of_layers(mixer, num_layers)
    mlps: Sequence[Mlp | None] = _of_layers(mlp, num_layers)
    return ModelConfig(
        layers=tuple(
            LayerConfig(mixer=one, mlp=other) for one, other in zip(mixers, mlps, strict=True)
        ),
        **{**_read_common(fields), **decided},
    )


def _of_layers(part: Part | Sequence[Part], num_layers: int) -> Sequence[Part]:
    return part if isinstance(part, Sequence) else (part,) * num_layers


def _read_common(fields: Fields) -> dict[str, Any]:
    """Reads the fields of every decoder's config beside its layers, by the names of ModelConfig."""
    return {
        "architecture": read_architecture(fields),
        "vocab_size": fields.integer("vocab_size"),
        "hidden_size": fields.integer("hidden_size"),
        "norm_eps": fields.number("rms_norm_eps"),
        "max_position_embeddings": fields.integer("max_position_embeddings"),
        "tie_embeddings": fields.flag("tie_word_embeddings", False),
        "bos_token_ids": fields.token_ids("bos_token_id"),
        "eos_token_ids": fields.token_ids("eos_token_id"),
        "checkpoint_dtype": read_dtype(fields),
    }


def read_architecture(fields: Fields) -> str:
    """The class name that the checkpoint was saved from."""
    names = fields.raw("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        fields.fault(fields.wrong("architectures", names, "a list with one class name"))
        return str(names)
    return names[0]


def read_dtype(fields: Fields) -> str:
    """The dtype that the config gives, or "" if it gives none."""
    keys: Mapping[str, str] = _DTYPES | {"": ""}
    older = fields.choice("torch_dtype", keys, "")
    return fields.choice("dtype", keys, "") or older


def _refuse_foreign(fields: Fields) -> None:
    """Refuses keys that would change the model in a way that no block supports."""
    fields.refuse("is_encoder_decoder", (False,), "supported: decoder-only models")
    fields.refuse("add_cross_attention", (False,), "supported: decoder-only models")
    fields.refuse("pruned_heads", ({}, []), "supported: models whose heads are all present")
    fields.ignore(*LEFTOVERS)
    for key in SETTINGS:  # what reads the tensors reads these
        fields.raw(key, None)
