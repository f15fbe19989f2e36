"""Faults that gates find in kernels of older Tritons alone.

They cost speed. Whether another spelling of a kernel avoids them was not tried for all of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ingot.artifact.launches import BuiltLaunches
from ingot.artifact.target import Target
from ingot.targets.cuda import gates
from ingot.targets.cuda.triton_package import find_triton


@dataclass(frozen=True)
class Known:
    """A fault of a kernel, as the gates word it, with some Tritons on some architectures.

    Attributes:
        fault: a regular expression for all of the words.
    """

    versions: tuple[str, ...]
    levels: tuple[str, ...]
    kernel: str
    fault: str

    def covers(self, found: str, level: str, version: str) -> bool:
        file, _, fault = found.partition(": ")
        return (
            version.rpartition(".")[0] in self.versions
            and level in self.levels
            and self.kernel in file
            and re.fullmatch(self.fault, fault) is not None
        )


OLDEST, NEXT, LAST = ("3.6",), ("3.7",), ("3.8",)
OLD = (*OLDEST, *NEXT)
SM_80, SM_90, SM_100, SM_103, _ = LEVELS = ("sm_80", "sm_90", "sm_100", "sm_103", "sm_120")
PRODUCT, CHUNKS, TILES = "product.multiply-", "attention.attend_chunks-", "attention.attend_tiles-"
LATENT_CHUNKS, LATENT_TILES = "latent.attend_chunks-", "latent.attend_tiles-"


def spilled(instructions: int, size: int) -> str:
    return (
        f"{instructions} instructions move values between registers and local memory, which has "
        f"{size} bytes of a thread"
    )


def narrow(count: int, wide: int) -> str:
    return rf"{count} loads are of fewer bytes than the {wide} of 16: is a pointer unaligned\?"


def under_way(size: int) -> str:
    return rf"\d programs a multiprocessor have {size} bytes under way from memory; .*"


KNOWN = (
    # Weights in int4.
    Known(OLD, (SM_80,), PRODUCT, spilled(9, 16)),
    Known(OLD, (SM_80,), PRODUCT, spilled(11, 24)),
    Known((*OLD, *LAST), (SM_100, SM_103), PRODUCT, under_way(32768)),
    # Weights in Q6_K, and in Q3_K.
    Known(OLDEST, (SM_80,), PRODUCT, spilled(8, 8)),
    Known(NEXT, (SM_80,), PRODUCT, spilled(10, 16)),
    Known(NEXT, (SM_80,), PRODUCT, spilled(8, 16)),
    # The gates of experts in a step of many rows.
    Known(LAST, (SM_80,), "experts.multiply_gated-", spilled(18, 72)),
    # Steps of several rows.
    Known(OLDEST, (SM_90, SM_100), TILES, spilled(7, 16)),
    # A cache in int8.
    Known(OLDEST, (SM_90, SM_100), TILES, under_way(20120)),
    Known(OLDEST, (SM_100,), CHUNKS, under_way(34404)),
    Known(NEXT, (SM_80,), TILES, spilled(7, 16)),
    Known(NEXT, (SM_90,), TILES, spilled(11, 16)),
    Known(NEXT, (SM_90,), TILES, spilled(14, 16)),
    Known(NEXT, (SM_100,), TILES, spilled(10, 16)),
    Known(NEXT, (SM_100,), TILES, spilled(13, 16)),
    # A cache in float32.
    Known(OLDEST, LEVELS, TILES, narrow(36, 32)),
    Known(NEXT, (SM_100,), TILES, under_way(33578)),
    Known(NEXT, (SM_100,), TILES, spilled(174, 352)),
    # Rows of latent attention. The narrow loads are of numbers of pages.
    Known(OLDEST, LEVELS, LATENT_CHUNKS, narrow(27, 18)),
    Known(OLDEST, LEVELS, LATENT_TILES, narrow(51, 50)),
    Known(OLDEST, (SM_80,), LATENT_CHUNKS, spilled(8, 16)),
    Known(OLDEST, (SM_80,), LATENT_CHUNKS, spilled(10, 24)),
    Known(OLDEST, (SM_100,), LATENT_CHUNKS, under_way(37716)),
)


def unexpected_faults(built: BuiltLaunches, folder: Path, target: Target) -> list[str]:
    """What gates find in kernels, without the faults that the installed Triton is known for."""
    found = gates.check(built.launches, built.binaries, folder, target)
    return unexpected(found, target.level, find_triton().version)


def unexpected(found: list[str], level: str, version: str) -> list[str]:
    """The faults that a version of Triton is not known for."""
    return [
        fault for fault in found if not any(each.covers(fault, level, version) for each in KNOWN)
    ]
