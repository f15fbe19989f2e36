"""Sizes that kernels are built with; `levels.py` has them by target.

They decide how fast a target is, and no bit of what it computes. `python -m bench.tune_cpu` times
others on a processor, and says how many operations that processor does for each byte that it reads.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from ingot.artifact.target import Target
from ingot.targets.cpu.levels import LEVELS


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """The sizes; `kernels/tuning.h` has them as constants.

    Attributes:
        core_cache: bytes of second-level cache, which blocks of weights and rows share; see
            `CpuLevel.core_cache`.
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


def tuning_of(target: Target) -> Tuning:
    """The sizes of a CPU target."""
    return Tuning(**LEVELS[target.level].sizes(target.features))


def flags_of(tuning: Tuning) -> tuple[str, ...]:
    """What tells a compiler."""
    return tuple(f"-DINGOT_{x.name.upper()}={getattr(tuning, x.name)}" for x in fields(tuning))
