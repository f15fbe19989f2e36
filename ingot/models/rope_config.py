"""Reads the rotary configuration in either spelling and resolves every default.

Older files have `rope_theta` and `rope_scaling` (with `type` or `rope_type`); newer ones have
`rope_parameters`, flat or one object per layer type. Defaults are those of `transformers`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from types import MappingProxyType
from typing import Any, cast

from ingot.errors import ConfigError
from ingot.models.fields import Fields
from ingot.models.rope import NO_ROPE, RopeConfig, RopeType

LAYER_TYPES = ("full_attention", "sliding_attention")
# Written by some tools beside the parameters; changes nothing.
_NOISE = frozenset({"finetuned"})
# Of other types, and of other programs: `attn_factor`, which transformers computes itself.
_IGNORED = (
    *("factor", "original_max_position_embeddings", "attention_factor", "attn_factor", "truncate"),
    *("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "short_factor", "long_factor"),
    *("low_freq_factor", "high_freq_factor"),
)
# What may stand beside the rope object.
_OUTSIDE = ("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor")
_OUTSIDE_BY_TYPE = "original_max_position_embeddings"


def parse_rope(
    fields: Fields,
    head_dim: int,
    max_position_embeddings: int,
    *,
    partial: bool = False,
    beside: Set[str] = frozenset(),
    called: Mapping[str, str] = MappingProxyType({}),
) -> RopeConfig:
    """Reads the rotary keys of a config.json.

    Args:
        fields: the whole config.
        head_dim: size of one head.
        max_position_embeddings: longest position of the model.
        partial: whether the family rotates only `partial_rotary_factor` of a head.
        beside: further keys of the rope object, which the family reads itself.
        called: types that mean another one in the files of this family.

    Raises:
        ConfigError: unknown type or key, missing or wrong value, both spellings at odds.
    """
    with fields.noting():
        scaling = _find(fields)
        with scaling.noting():
            return _parse(
                scaling,
                fields,
                head_dim,
                max_position_embeddings,
                partial=partial,
                beside=beside,
                called=called,
            )
    _read_outside(fields)
    return NO_ROPE


def parse_ropes(
    fields: Fields,
    head_dim: int,
    max_position_embeddings: int,
    *,
    sliding_theta: float,
    full_head_dim: int | None = None,
) -> tuple[RopeConfig, RopeConfig]:
    """Reads the rotations of full and of sliding layers, where a family has one for each.

    Heads of full layers may have a size of their own. In the older spelling all rotary keys are
    those of full layers. Raises as `parse_rope` does.
    """
    sizes = full_head_dim or head_dim, head_dim
    ropes = [NO_ROPE, NO_ROPE]
    with fields.noting():
        full, sliding = _find_both(fields)
        outside = Fields({"rope_theta": sliding_theta}, fields.where)
        for place, (scaling, others) in enumerate(((full, fields), (sliding, outside))):
            with scaling.noting():
                ropes[place] = _parse(scaling, others, sizes[place], max_position_embeddings)
    _read_outside(fields)
    return ropes[0], ropes[1]


def _refuse_both(fields: Fields) -> None:
    new, old = fields.raw("rope_parameters", None), fields.raw("rope_scaling", None)
    if new is not None and old is not None and _spelled_newly(new) != _spelled_newly(old):
        raise ConfigError(
            f"{fields.where} has both rope_parameters and rope_scaling",
            hint="keep one of the two: rope_parameters is the newer spelling",
        )


def _spelled_newly(value: Any) -> Any:
    """A rope object whose type is called `rope_type`."""
    if not isinstance(value, dict) or "type" not in value:
        return value
    return {"rope_type": value["type"]} | {k: v for k, v in value.items() if k != "type"}


def _find_both(fields: Fields) -> tuple[Fields, Fields]:
    _refuse_both(fields)
    if "rope_parameters" not in fields:
        return fields.nested("rope_scaling"), Fields({}, fields.where)
    parameters = fields.nested("rope_parameters")
    full, sliding = (parameters.nested(kind) for kind in LAYER_TYPES)
    parameters.finish()
    return full, sliding


def _read_outside(fields: Fields) -> None:
    for key in (*_OUTSIDE, _OUTSIDE_BY_TYPE):  # none of them is unknown for what is wrong here
        fields.raw(key, None)


def _parse(
    scaling: Fields,
    fields: Fields,
    head_dim: int,
    max_position: int,
    *,
    partial: bool = False,
    beside: Set[str] = frozenset(),
    called: Mapping[str, str] = MappingProxyType({}),
) -> RopeConfig:
    old, new = scaling.raw("type", None), scaling.raw("rope_type", None)
    if None not in (old, new) and old != new:
        raise scaling.wrong("type", old, "the same as rope_type")
    key = "type" if new is None else "rope_type"
    kind = cast(RopeType, scaling.choice(key, _SPELLINGS | dict(called), "default"))
    if not scaling.sound(key):
        fields.raw(_OUTSIDE_BY_TYPE, None)
        kind = "default"
    theta = _either(fields, scaling, "rope_theta", 10000.0)
    fraction = _either(fields, scaling, "partial_rotary_factor", 1.0)
    proportional = kind == "proportional"
    if fraction > 1.0 or (not partial and not proportional and fraction != 1.0):
        raise scaling.wrong(
            "partial_rotary_factor", fraction, "at most 1" if partial else "1 for this family"
        )
    if kind == "yarn" and theta == 1.0:
        raise scaling.wrong("rope_theta", theta, "different from 1 for rope type yarn")
    more = _PARSERS[kind](scaling, fields, max_position)
    if (old, new) != (None, None):  # without a type they may be what is meant
        scaling.ignore(*_IGNORED)
    if scaling.sound():
        scaling.finish(_NOISE | beside)
    if proportional:  # of the whole head, though not all of it turns
        more["turning"] = int(head_dim * fraction // 2)
    rotary_dim = head_dim if proportional else int(head_dim * fraction)
    return RopeConfig(type=kind, theta=theta, rotary_dim=rotary_dim, **more)


def _find(fields: Fields) -> Fields:
    """The object with the scaling parameters, in whichever spelling."""
    _refuse_both(fields)
    scaling = fields.nested("rope_parameters")
    if "rope_parameters" not in fields:
        scaling = fields.nested("rope_scaling")
    elif nested := [key for key in scaling.names() if key in LAYER_TYPES]:
        scaling = _one_for_all(scaling, nested)
    fields.raw("rope_scaling", None)
    return scaling


def _one_for_all(parameters: Fields, nested: list[str]) -> Fields:
    """The single object of parameters that are nested per layer type."""
    objects = [parameters.raw(key, None) for key in nested]
    parameters.finish()
    first = objects[0]
    if any(value != first for value in objects[1:]) or first is None:
        raise ConfigError(
            f"{parameters.where} differs between {' and '.join(nested)}",
            hint="supported: one set of rotary parameters for all layers",
        )
    return parameters.nested(nested[0])


def _either(fields: Fields, scaling: Fields, key: str, default: float) -> float:
    """A number that may stand beside or inside the rope object; inside wins."""
    outside = fields.positive(key, default)
    return scaling.positive(key, outside)


def _original_length(scaling: Fields, fields: Fields, max_position: int) -> int:
    """The trained length; a value beside the rope object wins over one inside it."""
    inside = scaling.integer("original_max_position_embeddings", max_position)
    return fields.integer("original_max_position_embeddings", inside)


# Each of these reads what its type has beside theta and the rotated part of a head.


def _parse_default(scaling: Fields, fields: Fields, max_position: int) -> dict[str, Any]:
    return {"original_max_position_embeddings": max_position}


def _parse_stretched(scaling: Fields, fields: Fields, max_position: int) -> dict[str, Any]:
    factor = scaling.positive("factor")
    return {"factor": factor, "original_max_position_embeddings": max_position}


def _parse_proportional(scaling: Fields, fields: Fields, max_position: int) -> dict[str, Any]:
    factor = scaling.positive("factor", 1.0)
    return {"factor": factor, "original_max_position_embeddings": max_position}


def _parse_llama3(scaling: Fields, fields: Fields, max_position: int) -> dict[str, Any]:
    low = scaling.positive("low_freq_factor")
    high = scaling.positive("high_freq_factor")
    if high <= low:
        raise scaling.wrong("high_freq_factor", high, f"above low_freq_factor {low:g}")
    return {
        "factor": scaling.positive("factor"),
        "original_max_position_embeddings": _original_length(scaling, fields, max_position),
        "low_freq_factor": low,
        "high_freq_factor": high,
    }


def _mscale(factor: float, mscale: float = 1.0) -> float:
    return 1.0 if factor <= 1.0 else 0.1 * mscale * math.log(factor) + 1.0


def _parse_yarn(scaling: Fields, fields: Fields, max_position: int) -> dict[str, Any]:
    original = _original_length(scaling, fields, max_position)
    factor = scaling.positive("factor", max_position / original)
    over, under = scaling.number("mscale", 0.0), scaling.number("mscale_all_dim", 0.0)
    attention = _mscale(factor)
    if over and under:
        attention = _mscale(factor, over) / _mscale(factor, under)
    fast = scaling.positive("beta_fast", 32.0)
    slow = scaling.positive("beta_slow", 1.0)
    if fast < slow:
        raise scaling.wrong("beta_fast", fast, f"at least beta_slow {slow:g}")
    return {
        "factor": factor,
        "original_max_position_embeddings": original,
        "attention_factor": scaling.number("attention_factor", attention),
        "beta_fast": fast,
        "beta_slow": slow,
        "truncate": scaling.flag("truncate", True),
    }


def _parse_longrope(scaling: Fields, fields: Fields, max_position: int) -> dict[str, Any]:
    original = _original_length(scaling, fields, max_position)
    factor = scaling.positive("factor", max_position / original)
    attention = 1.0
    if factor > 1.0 and "attention_factor" not in scaling:
        if original == 1:
            raise scaling.wrong("original_max_position_embeddings", original, "above 1")
        attention = math.sqrt(1.0 + math.log(factor) / math.log(original))
    return {
        "factor": factor,
        "original_max_position_embeddings": original,
        "attention_factor": scaling.number("attention_factor", attention),
        "short_factor": scaling.numbers("short_factor"),
        "long_factor": scaling.numbers("long_factor"),
    }


_PARSERS = {
    "default": _parse_default,
    "linear": _parse_stretched,
    "dynamic": _parse_stretched,
    "llama3": _parse_llama3,
    "yarn": _parse_yarn,
    "longrope": _parse_longrope,
    "proportional": _parse_proportional,
}
# "su" is what longrope was first called; "mrope" and others are refused by not being here.
_SPELLINGS = {name: name for name in _PARSERS} | {"su": "longrope"}
