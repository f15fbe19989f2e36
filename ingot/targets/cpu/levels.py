"""The levels of CPUs, one table for each architecture: what a host must have, what compilers are
told, and the sizes that kernels are cut for.

A further architecture is a further table in `LEVELS`, and headers in `kernels/`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ingot.artifact.target import Target
from ingot.errors import UsageError
from ingot.targets.levels import Level, runnable

KIB = 1 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuLevel(Level):
    """See `ingot.targets.levels.Level`.

    Attributes:
        arch: the architecture as the system calls it, one of the flags.
        headers: of the compiler, which kernels include.
        compiler_flags: what makes a compiler build for the level and not for this host.
        feature_flags: what makes it use a feature.
        tuned: sizes of kernels (`tuning.Tuning`) by features; "" is for all targets of the level.
    """

    arch: str
    headers: tuple[str, ...]
    compiler_flags: tuple[str, ...]
    feature_flags: Mapping[str, str] = field(default_factory=dict)
    tuned: Mapping[str, Mapping[str, int]]

    def sizes(self, features: Iterable[str]) -> Mapping[str, int]:
        """Sizes of the last line whose features a target has."""
        there = self.with_implied(features)
        *_, found = (x for line, x in self.tuned.items() if {*line.split("+")} - {""} <= there)
        return found

    def core_cache(self, features: Iterable[str]) -> int:
        """Least cache of a core in bytes on processors of such targets. With less, kernels are
        slower and nothing else."""
        return self.sizes(features)["core_cache"]


_X86_64 = frozenset({"x86_64"})
_V3 = _X86_64 | {"avx2", "fma", "f16c", "bmi1", "bmi2"}
_WITH_TILES = frozenset({"avx512_bf16", "avx512_vnni"})  # what every processor with tiles has
_WIDE = "-mprefer-vector-width=512"

# The flags are those of /proc/cpuinfo that a level needs, as the psABI defines them. A column of
# bfloat16 takes two registers where no instruction multiplies pairs of it.
X86_64: Mapping[str, CpuLevel] = {
    "x86-64-v4": CpuLevel(
        layout="cpu",
        arch="x86_64",
        flags=_V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
        features={
            "amx_bf16": _WITH_TILES,
            "amx_int8": _WITH_TILES,
            "avx512_bf16": frozenset(),
            "avx512_vnni": frozenset(),
        },
        headers=("immintrin.h",),
        compiler_flags=("-march=x86-64-v4", _WIDE),
        feature_flags={
            "amx_bf16": "-mamx-bf16",
            "amx_int8": "-mamx-int8",
            "avx512_bf16": "-mavx512bf16",
            "avx512_vnni": "-mavx512vnni",
        },
        tuned={
            "": {"core_cache": 1024 * KIB, "bfloat16_rows": 5},
            "avx512_vnni": {"core_cache": 1024 * KIB, "bfloat16_rows": 5, "quad_rows": 8},
            "avx512_bf16": {"core_cache": 1024 * KIB},
            "avx512_bf16+avx512_vnni": {
                "core_cache": 1024 * KIB,
                "quad_rows": 8,
                "stream_cache": 1,
                "int8_ahead": 8192,
                "int4_ahead": 8192,
                "unpacked_rows": 20,
            },
            "amx_bf16": {"core_cache": 2048 * KIB, "quad_rows": 8},
            "amx_int8": {"core_cache": 2048 * KIB, "quad_rows": 8},
        },
    ),
    "x86-64-v3": CpuLevel(
        layout="cpu",
        arch="x86_64",
        flags=_V3,
        features={"avx_vnni": frozenset()},
        headers=("immintrin.h",),
        compiler_flags=("-march=x86-64-v3", _WIDE),
        feature_flags={"avx_vnni": "-mavxvnni"},
        tuned={
            "": {"core_cache": 256 * KIB, "bfloat16_rows": 5, "quad_rows": 4},
            "avx_vnni": {"core_cache": 256 * KIB, "bfloat16_rows": 5},
        },
    ),
    "portable": CpuLevel(
        layout="cpu",
        arch="x86_64",
        flags=_X86_64,
        headers=("immintrin.h",),
        compiler_flags=("-march=x86-64",),
        tuned={"": {"core_cache": 256 * KIB, "float_rows": 2, "bfloat16_rows": 2, "quad_rows": 2}},
    ),
}
LEVELS: dict[str, CpuLevel] = {**X86_64}  # of all architectures; the best of each comes first


def native_target(flags: frozenset[str]) -> Target:
    """The best CPU target for a host with those flags.

    Raises UsageError for a host of an architecture that has no table.
    """
    found = runnable("cpu", LEVELS, flags)
    if found:
        return found[0]
    *_, (name, level) = LEVELS.items()
    known = " or ".join(dict.fromkeys(_spelled(each.arch) for each in LEVELS.values()))
    raise UsageError(
        f"cpu:native needs an {known} host, and this is none",
        hint=f"Name a target, such as --target cpu:{name}, and a compiler for "
        f"{_spelled(level.arch)} in INGOT_CXX.",
    )


def _spelled(arch: str) -> str:
    """An architecture as its makers write it, such as x86-64."""
    return arch.replace("_", "-")
