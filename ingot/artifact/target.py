"""Targets as values: what code is built for, such as `cpu:x86-64-v4+avx512_bf16`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ingot.artifact.architectures import ARCHITECTURES
from ingot.errors import UsageError

_BASELINE = frozenset({"x86_64"})
_V3 = _BASELINE | {"avx2", "fma", "f16c", "bmi1", "bmi2"}
# The architecture and the /proc/cpuinfo flags that each level needs, as the psABI defines them.
CPU_LEVELS: Mapping[str, frozenset[str]] = {
    "x86-64-v4": _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
    "x86-64-v3": _V3,
    "portable": _BASELINE,
}
CPU_FEATURES: Mapping[str, tuple[str, ...]] = {
    "x86-64-v4": ("amx_bf16", "amx_int8", "avx512_bf16", "avx512_vnni"),
    "x86-64-v3": ("avx_vnni",),
}
# Bytes of second-level cache for each processor that kernels of a level, or with a feature, are cut
# for: what processors have that run them, at least. With less, they are slower and nothing else.
KIB = 1 << 10
CORE_CACHES: Mapping[str, int] = {
    "portable": 256 * KIB,
    "x86-64-v3": 256 * KIB,
    "x86-64-v4": 1024 * KIB,
    "amx_bf16": 2048 * KIB,
    "amx_int8": 2048 * KIB,
}
# What every processor with a feature has as well; names of targets leave it out.
_WITH_TILES = frozenset({"avx512_bf16", "avx512_vnni"})
IMPLIED: Mapping[str, frozenset[str]] = {"amx_bf16": _WITH_TILES, "amx_int8": _WITH_TILES}


@dataclass(frozen=True, slots=True)
class Names:
    """The names that targets of a kind have.

    Attributes:
        levels: the flags that a host needs for each; see `host_flags`.
        features: the flags beyond them that targets of a level may use.
    """

    levels: Mapping[str, frozenset[str]]
    features: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def has(self, level: str, features: Iterable[str]) -> bool:
        return level in self.levels and set(features) <= set(self.features.get(level, ()))

    def spelled(self, kind: str) -> str:
        """All of them, for a message."""
        levels = ", ".join(f"{kind}:{level}" for level in self.levels)
        takes = (f"{kind}:{x} takes +{', +'.join(y)}" for x, y in self.features.items())
        return "; ".join((levels, *takes))


# Compute capabilities of NVIDIA GPUs; each needs its own binaries.
CUDA_LEVELS: Mapping[str, frozenset[str]] = {level: frozenset({level}) for level in ARCHITECTURES}
CUDA_TARGETS = tuple(f"cuda:{level}" for level in CUDA_LEVELS)
# Which drivers load the binaries: as many as possible, or those of the newest tools alone.
CUDA_REACHES = ("wide", "new")
# What targets are called, by kind; a room in `ingot.targets` carries out each.
NAMES: dict[str, Names] = {
    "cpu": Names(CPU_LEVELS, CPU_FEATURES),
    "cuda": Names(CUDA_LEVELS),
}


@dataclass(frozen=True, slots=True, order=True)
class Target:
    """A kind of machine, such as "cpu"; a level; and the features beyond the level, sorted, without
    those that others imply.

    `reach`, one of CUDA_REACHES, says which drivers a GPU's binaries are built for. It is part
    neither of the name nor of what is equal: an artifact has one target of a name.
    """

    kind: str
    level: str
    features: tuple[str, ...] = ()
    reach: str = field(default="wide", compare=False)

    @property
    def name(self) -> str:
        return f"{self.kind}:" + "+".join((self.level, *self.features))

    @property
    def all_features(self) -> frozenset[str]:
        """The features beyond the level, with those that others imply."""
        return with_implied(self.features)

    @property
    def requires(self) -> frozenset[str]:
        """The flags that a host must have; see `host_flags`."""
        return NAMES[self.kind].levels[self.level] | self.all_features

    @property
    def core_cache(self) -> int:
        """Bytes of second-level cache that its kernels are cut for; 0 for a GPU."""
        return max(CORE_CACHES.get(name, 0) for name in (self.level, *self.features))

    @classmethod
    def of(cls, kind: str, level: str, features: Iterable[str]) -> Target:
        """The target with those features, of which some may imply others."""
        given = set(features)
        implied = frozenset[str]().union(*(IMPLIED.get(f, ()) for f in given))
        return cls(kind, level, tuple(sorted(given - implied)))

    @classmethod
    def parse(cls, name: str) -> Target:
        """The target of that name. Raises UsageError for an unknown name."""
        kind, _, rest = name.partition(":")
        level, *features = rest.split("+")
        names = NAMES.get(kind)
        if names is None or not names.has(level, features):
            hint = "; ".join(each.spelled(of) for of, each in NAMES.items())
            raise UsageError(
                f"unknown target {name!r}", hint=f"Supported: cpu:native, cuda:native, {hint}."
            )
        return cls.of(kind, level, features)


def with_implied(features: Iterable[str]) -> frozenset[str]:
    """Features, and those that they imply."""
    given = frozenset(features)
    return given.union(*(IMPLIED.get(f, ()) for f in given))


def kind_of_name(target: str) -> str:
    """The kind in the name of a target: "cpu" of "cpu:portable"."""
    return target.partition(":")[0]


def native_target(flags: frozenset[str]) -> Target:
    """The best CPU target for a host with those flags; see `host_flags`.

    Raises UsageError for a host that is no x86-64.
    """
    level = next((name for name, needed in CPU_LEVELS.items() if needed <= flags), "")
    if not level:
        raise UsageError(
            "cpu:native needs an x86-64 host, and this is none",
            hint="Name a target, such as --target cpu:portable, and a compiler for x86-64 in "
            "INGOT_CXX.",
        )
    return cpu_target(level, flags)


def cpu_target(level: str, flags: frozenset[str]) -> Target:
    """The target of a level with all features of a host with those flags."""
    known = CPU_FEATURES.get(level, ())
    return Target.of("cpu", level, (f for f in known if with_implied([f]) <= flags))
