"""The architectures of NVIDIA GPUs that kernels are built for: the one table of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The limits that a binary must fit, and the card that figures are predicted for.

    Attributes:
        number: such as 90.
        cuda: the first version of CUDA that knows it, as drivers count: 12080 for 12.8.
        most_shared_bytes: that one program may have, on every GPU that runs its binaries.
        shared_bytes: of a multiprocessor, for all programs on it.
        most_warps, most_programs: that a multiprocessor runs at a time.
        card: the one whose figures follow.
        multiprocessors: of the card.
        bytes_per_second: of the card's memory.
    """

    number: int
    cuda: int
    most_shared_bytes: int
    shared_bytes: int
    most_warps: int = 64
    most_programs: int = 32
    card: str
    multiprocessors: int
    bytes_per_second: float

    @property
    def level(self) -> str:
        """The level of its targets."""
        return f"sm_{self.number}"


_KIB = 1024
_ALL = (
    Architecture(
        number=80,
        cuda=11_000,
        most_shared_bytes=99 * _KIB,  # of 8.6 and 8.9; 8.0 has 163
        shared_bytes=164 * _KIB,
        card="A100",
        multiprocessors=108,
        bytes_per_second=2.0e12,
    ),
    Architecture(
        number=90,
        cuda=11_080,
        most_shared_bytes=227 * _KIB,
        shared_bytes=228 * _KIB,
        card="H200",
        multiprocessors=132,
        bytes_per_second=4.8e12,
    ),
    Architecture(
        number=100,
        cuda=12_080,
        most_shared_bytes=227 * _KIB,
        shared_bytes=228 * _KIB,
        card="B200",
        multiprocessors=148,
        bytes_per_second=8.0e12,
    ),
    Architecture(
        number=103,
        cuda=12_090,
        most_shared_bytes=227 * _KIB,
        shared_bytes=228 * _KIB,
        card="B300",
        multiprocessors=148,
        bytes_per_second=8.0e12,
    ),
    Architecture(
        number=120,
        cuda=12_080,
        most_shared_bytes=99 * _KIB,
        shared_bytes=100 * _KIB,
        most_warps=48,
        most_programs=24,
        card="RTX 5090",
        multiprocessors=170,
        bytes_per_second=1.8e12,
    ),
)
ARCHITECTURES: Mapping[str, Architecture] = {each.level: each for each in _ALL}
