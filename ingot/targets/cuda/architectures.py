"""The architectures that kernels are built for, and the card of each that gates reckon with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ingot.artifact.target import Target
from ingot.errors import ToolchainError


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """What a binary must fit.

    Attributes:
        number: such as 90.
        most_shared_bytes: that one program may have.
        shared_bytes: of a multiprocessor, for all programs on it.
        card: the one whose figures follow.
        multiprocessors: of the card.
        bytes_per_second: of the card's memory.
    """

    number: int
    most_shared_bytes: int
    shared_bytes: int
    card: str
    multiprocessors: int
    bytes_per_second: float


_KIB = 1024
ARCHITECTURES: Mapping[str, Architecture] = {
    "sm_80": Architecture(
        number=80,
        most_shared_bytes=163 * _KIB,
        shared_bytes=164 * _KIB,
        card="A100",
        multiprocessors=108,
        bytes_per_second=2.0e12,
    ),
    "sm_90": Architecture(
        number=90,
        most_shared_bytes=227 * _KIB,
        shared_bytes=228 * _KIB,
        card="H200",
        multiprocessors=132,
        bytes_per_second=4.8e12,
    ),
    "sm_100": Architecture(
        number=100,
        most_shared_bytes=227 * _KIB,
        shared_bytes=228 * _KIB,
        card="B200",
        multiprocessors=148,
        bytes_per_second=8.0e12,
    ),
}


def architecture_of(target: Target) -> Architecture:
    """Of a CUDA target. Raises ToolchainError for a level that nothing is built for."""
    found = ARCHITECTURES.get(target.level)
    if found is None:
        known = ", ".join(ARCHITECTURES)
        raise ToolchainError(f"{target.name} is no target of CUDA", hint=f"Levels: {known}.")
    return found
