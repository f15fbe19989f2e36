"""Targets as values: what code is built for, written `cpu:x86-64-v4+avx512_bf16`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
    "x86-64-v4": ("avx512_bf16", "avx512_vnni"),
    "x86-64-v3": ("avx_vnni",),
}


@dataclass(frozen=True, slots=True, order=True)
class Target:
    """A kind of machine: `kind` "cpu", a level, and features beyond the level, sorted."""

    kind: str
    level: str
    features: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.kind}:" + "+".join((self.level, *self.features))

    @property
    def requires(self) -> frozenset[str]:
        """The flags that a host must have; see `host_flags`."""
        return CPU_LEVELS[self.level] | frozenset(self.features)

    @classmethod
    def parse(cls, name: str) -> Target:
        """The target of that name. Raises UsageError for a name that is none."""
        kind, _, rest = name.partition(":")
        level, *features = rest.split("+")
        known = CPU_FEATURES.get(level, ())
        if kind != "cpu" or level not in CPU_LEVELS or not set(features) <= set(known):
            levels = ", ".join(f"cpu:{name}" for name in CPU_LEVELS)
            takes = "; ".join(f"cpu:{x} takes +{', +'.join(y)}" for x, y in CPU_FEATURES.items())
            raise UsageError(
                f"unknown target {name!r}", hint=f"Supported: cpu:native, {levels}; {takes}."
            )
        return cls(kind, level, tuple(sorted(set(features))))


def native_target(flags: frozenset[str]) -> Target:
    """The best CPU target for a host with those flags; see `host_flags`.

    Raises UsageError for a host that is no x86-64.
    """
    level = next((name for name, needed in CPU_LEVELS.items() if needed <= flags), "")
    if not level:
        raise UsageError(
            "this host is no x86-64, and cpu:native is what runs on it",
            hint="Supported: naming another target, such as --target cpu:portable, with a compiler "
            "for x86-64 in INGOT_CXX.",
        )
    features = tuple(f for f in CPU_FEATURES.get(level, ()) if f in flags)
    return Target("cpu", level, tuple(sorted(features)))
