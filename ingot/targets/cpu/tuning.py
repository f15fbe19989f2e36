"""Sizes that kernels are built with, by target.

They decide how fast a target is, and no bit of what it computes. Those of a level hold for all
targets of it that have no line of their own. `python -m bench.tune_cpu` times others on a
processor, and says how many operations that processor does for each byte that it reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from ingot.artifact.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """The sizes; `kernels/tuning.h` has them as constants.

    Attributes:
        core_cache: bytes of second-level cache, which blocks of weights and rows share; see
            `Target.core_cache`.
        float_rows, bfloat16_rows, quad_rows: rows of a tile in registers, whose weights are
            float32, bfloat16, or integers, of which four are multiplied at once.
        stream_cache: the level of cache, 1 or 2, that what is read once is fetched into.
        float_ahead, int8_ahead, int4_ahead: how far ahead weights that are read once are fetched,
            in bytes.
        unpacked_rows: the fewest rows for which int4 becomes int8 once, and not in every tile.
    """

    core_cache: int
    float_rows: int = 6
    bfloat16_rows: int = 6
    quad_rows: int = 6
    stream_cache: int = 2
    float_ahead: int = 4096
    int8_ahead: int = 2560
    int4_ahead: int = 3072
    unpacked_rows: int = 12


# By target, in the order of their features. A column of bfloat16 takes two registers where no
# instruction multiplies pairs of it.
TUNED: Mapping[str, Mapping[str, int]] = {
    "cpu:portable": {"float_rows": 2, "bfloat16_rows": 2, "quad_rows": 2},
    "cpu:x86-64-v3": {"bfloat16_rows": 5, "quad_rows": 4},
    "cpu:x86-64-v3+avx_vnni": {"bfloat16_rows": 5},
    "cpu:x86-64-v4": {"bfloat16_rows": 5},
    "cpu:x86-64-v4+avx512_vnni": {"bfloat16_rows": 5, "quad_rows": 8},
    "cpu:x86-64-v4+avx512_bf16": {},
    "cpu:x86-64-v4+avx512_bf16+avx512_vnni": {
        "quad_rows": 8,
        "stream_cache": 1,
        "int8_ahead": 8192,
        "int4_ahead": 8192,
        "unpacked_rows": 20,
    },
    "cpu:x86-64-v4+amx_bf16": {"quad_rows": 8},
    "cpu:x86-64-v4+amx_int8": {"quad_rows": 8},
}


def tuning_of(target: Target) -> Tuning:
    """The sizes of the last line whose features a target has."""
    lines = [(Target.parse(name), sizes) for name, sizes in TUNED.items()]
    *_, sizes = (
        sizes
        for line, sizes in lines
        if line.level == target.level and line.all_features <= target.all_features
    )
    return Tuning(core_cache=target.core_cache, **sizes)


def flags_of(tuning: Tuning) -> tuple[str, ...]:
    """What tells a compiler."""
    return tuple(f"-DINGOT_{x.name.upper()}={getattr(tuning, x.name)}" for x in fields(tuning))
