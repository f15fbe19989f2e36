"""Launches that begin before the one before them has ended.

They hide the time between two launches: their programs are there when the one before ends. Each
waits for that end first of all (`kernels/dependent.py`), so results cannot change. No card has
shown yet what it is worth, so it is off. `bench/gpu_check.sh` measures a model with it.
"""

from __future__ import annotations

from dataclasses import replace

from ingot.artifact.architectures import Architecture
from ingot.artifact.launches import Launches
from ingot.targets.cuda.gates import for_many_rows

ENABLED = False
OLDEST = 90  # the first architecture that can
# Products, and second stages, which stand between two products and are short.
FUNCTIONS = frozenset({
    "product.multiply", "product.multiply_gated", "finish.finish", "finish.gate", "finish.norm",
})  # fmt: skip


def with_dependents(launches: Launches, architecture: Architecture) -> Launches:
    """The launches, with kernels of steps of few rows that do not wait for the end of the one
    before them; the same where that is off or the architecture cannot."""
    if not ENABLED or architecture.number < OLDEST:
        return launches
    # What a step begins with follows copies and other steps.
    others = for_many_rows(launches) | {each.kernel for each in launches.launches[0].variants}
    kernels = tuple(
        replace(spec, dependent=spec.function in FUNCTIONS and number not in others)
        for number, spec in enumerate(launches.kernels)
    )
    return replace(launches, kernels=kernels)
