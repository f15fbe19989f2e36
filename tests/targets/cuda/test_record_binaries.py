"""The machine code of mixers that keep records, of the sizes that published models have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from ingot.artifact.architectures import ARCHITECTURES
from ingot.artifact.launches import Launches
from ingot.artifact.target import Target
from ingot.targets.cuda.generate import KernelNumbers, emit
from ingot.targets.cuda.operands import Operands
from ingot.targets.work import Work
from tests.support.core import core
from tests.targets.cuda.known_faults import unexpected_faults
from tests.targets.cuda.recording import Mixer
from tests.targets.cuda.shapes import built_launches
from tests.targets.cuda.tiny import TARGETS

pytestmark = pytest.mark.thorough
SM_90 = TARGETS[1]


def recurrence(
    rule: str, groups: int, heads: int, size: int, width: int, *, by_key: bool = False,
    skips: bool = False,
) -> Mixer:  # fmt: skip
    def row(*shape: int) -> torch.Tensor:
        return torch.zeros(1, 1, *shape)

    low_rank = rule == "low_rank"
    return Mixer(
        "recurrence",
        {
            **{name: row(groups, size) for name in "qk"},
            "v": row(heads, width),
            "decay": row(heads, size) if by_key else row(heads),
            "rule": rule,
            "beta": None if low_rank else row(heads),
            **{name: row(heads, size) if low_rank else None for name in "ab"},
            "skip": torch.zeros(heads) if skips else None,
        },
    )


def short_conv(taps: int, channels: int) -> Mixer:
    weight = torch.zeros(taps, channels)
    call = {"x": torch.zeros(1, 1, channels), "weight": weight, "bias": None, "activates": True}
    return Mixer("short_conv", call)


def selective_scan(depth: int, channels: int) -> Mixer:
    rows = {name: torch.zeros(1, 1, channels) for name in ("x", "dt")}
    small = {name: torch.zeros(1, 1, depth) for name in "bc"}
    weights = {"rate": torch.zeros(depth, channels), "skip": torch.zeros(channels)}
    return Mixer("selective_scan", {**rows, **small, **weights})


MIXERS: Mapping[str, Mixer] = {
    "qwen3.5": recurrence("delta", 16, 32, 128, 128),
    "kimi-linear": recurrence("delta", 32, 32, 128, 128, by_key=True),
    "rwkv7": recurrence("low_rank", 32, 32, 64, 64, by_key=True),
    "mamba2": recurrence("add", 8, 128, 128, 64, skips=True),
    "granite4": recurrence("add", 1, 128, 256, 64, skips=True),
    "lfm2 conv": short_conv(3, 2048),
    "falcon-mamba scan": selective_scan(16, 8192),
    "rwkv7 shift": Mixer("token_shift", {"x": torch.zeros(1, 1, 2560)}),
}


@pytest.mark.cases(thorough=3)
@pytest.mark.parametrize(
    ("name", "target"),
    core(
        further=[(name, SM_90) for name in ("qwen3.5", "rwkv7", "falcon-mamba scan")],
        slow=[(name, target) for target in TARGETS for name in MIXERS],
    ),
    ids=lambda value: getattr(value, "level", value),
)
def test_mixers_as_they_are_built(tmp_path: Path, name: str, target: Target) -> None:
    """Nothing but a few bytes is kept in local memory, and all fits the card."""
    plan, kernels = MIXERS[name].plan, KernelNumbers()
    operands = Operands(plan, ARCHITECTURES[target.level])
    calls = emit(operands, Work(plan, plan.kernels[0]))
    launches = tuple(kernels.launch(call, 0) for call in calls)
    built = built_launches(
        tmp_path, target, Launches(kernels=tuple(kernels.specs), launches=launches)
    )
    assert unexpected_faults(built, tmp_path, target) == []
