"""Targets as values: what code is built for, such as `cpu:x86-64-v4+avx512_bf16`.

What there is of a kind, and what each needs, stands in the tables of its room in `ingot.targets`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ingot.artifact.architectures import ARCHITECTURES

# Compute capabilities of NVIDIA GPUs; each needs its own binaries.
CUDA_LEVELS: Mapping[str, frozenset[str]] = {level: frozenset({level}) for level in ARCHITECTURES}
CUDA_TARGETS = tuple(f"cuda:{level}" for level in CUDA_LEVELS)
# Which drivers load the binaries: as many as possible, or those of the newest tools alone.
CUDA_REACHES = ("wide", "new")


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


def kind_of_name(target: str) -> str:
    """The kind in the name of a target: "cpu" of "cpu:portable"."""
    return target.partition(":")[0]
