"""Reads what layers consist of that keep one record of a sequence, and which layers these are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ingot.models.fields import Fields
from ingot.models.json_object import INFINITY
from ingot.models.layer_fields import read_num_layers
from ingot.models.moe_fields import spell_either

# Of models that have nothing whose places end: a length that positions and tables still hold.
LONGEST = 2**20
FULL, WINDOW, CONV, MAMBA = "full_attention", "sliding_attention", "conv", "mamba"
# What files call these kinds of layers: as they were published, and as newer programs write them.
KINDS = {
    "attention": FULL,
    "full_attention": FULL,
    "sliding_attention": WINDOW,
    "conv": CONV,
    "mamba": MAMBA,
    "linear_attention": MAMBA,
}


def read_kinds(
    fields: Fields, kinds: Sequence[str], default: Sequence[str], spelled: Mapping[str, str] = KINDS
) -> tuple[str, ...]:
    """The kind of each layer by `layer_types`, which some files call `layers_block_type`.

    Args:
        kinds: those that the family has.
        default: of each layer, where the file does not say.
        spelled: what files call the kinds.
    """
    spell_either(fields, "layer_types", "layers_block_type")
    given, count = fields.raw("layer_types", None), read_num_layers(fields)
    if given is None:
        return tuple(default)
    known = {spelling: kind for spelling, kind in spelled.items() if kind in kinds}
    if not isinstance(given, list) or len(given) != count:
        fields.fault(fields.wrong("layer_types", given, f"a list of {count} kinds of layers"))
        return tuple(default)
    for kind in given:
        if not isinstance(kind, str) or kind not in known:
            fields.fault(fields.wrong("layer_types", kind, f"made of {', '.join(known)}"))
            return tuple(default)
    return tuple(known[kind] for kind in given)


def read_time_steps(fields: Fields, key: str = "time_step_limit") -> tuple[float, float]:
    """The bounds of time steps; null and a missing key give none."""
    given = fields.raw(key, None)
    if given is None:
        return 0.0, math.inf
    bounds = given if isinstance(given, list) else []
    if len(bounds) == 2 and all(map(_is_bound, bounds)):
        low, high = (math.inf if bound == INFINITY else float(bound) for bound in bounds)
        if 0.0 <= low < high and low < math.inf:
            return low, high
    fields.fault(fields.wrong(key, given, "two numbers, the smaller one first, or null"))
    return 0.0, math.inf


def _is_bound(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number or value == INFINITY


def read_taps(fields: Fields, key: str, default: int) -> int:
    """The rows that a convolution adds up."""
    return fields.integer(key, default, minimum=2, maximum=2**10)
