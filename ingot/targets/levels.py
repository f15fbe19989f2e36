"""A level of a kind of machine: a row of the table that its room has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ingot.artifact.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Level of a kind: the common ground of its targets, and what they may have besides.

    Attributes:
        layout: how their weights are packed; targets of one layout share the file.
        flags: those that a host needs; see `host_flags`.
        features: the flags beyond these that a target may use, each with those that every host
            with it has as well: names of targets leave the latter out.
    """

    layout: str
    flags: frozenset[str] = frozenset()
    features: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def with_implied(self, features: Iterable[str]) -> frozenset[str]:
        """Features, and those that come with them."""
        given = frozenset(features)
        return given.union(*(self.features[name] for name in given))

    def core_cache(self, features: Iterable[str]) -> int:
        """Bytes of second-level cache for each processor that kernels of a target with those
        features are cut for; 0 where that is no matter."""
        return 0

    def named(self, kind: str, level: str, features: Iterable[str]) -> Target:
        """The target with those features, of which some may come with others."""
        given = set(features)
        implied = frozenset[str]().union(*(self.features[name] for name in given))
        return Target(kind, level, tuple(sorted(given - implied)))


def runnable(kind: str, levels: Mapping[str, Level], flags: frozenset[str]) -> list[Target]:
    """The targets that a host with those flags runs, one of each level, in their order: each with
    all features that the host has."""
    return [
        level.named(kind, name, (f for f in level.features if level.with_implied([f]) <= flags))
        for name, level in levels.items()
        if level.flags <= flags
    ]
