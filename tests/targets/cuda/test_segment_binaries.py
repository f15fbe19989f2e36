"""The machine code of attention over segments, for heads that encoders and towers have."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ingot.artifact.launches import Launches
from ingot.artifact.plan import Group
from ingot.artifact.target import Target
from ingot.targets.cuda.calls_attention import segment_attention
from ingot.targets.cuda.generate import KernelNumbers
from ingot.targets.cuda.operands import Operands
from ingot.targets.work import Work
from tests.support.core import core
from tests.targets.cuda.known_faults import unexpected_faults
from tests.targets.cuda.segmented import Shape
from tests.targets.cuda.shapes import built_launches
from tests.targets.cuda.tiny import TARGETS

pytestmark = pytest.mark.thorough
SM_90 = TARGETS[1]
FULL = torch.float32
SHAPES = {
    "minilm": Shape(12, 1, 32),
    "paddleocr": Shape(16, 1, 72),
    "qwen2-vl": Shape(16, 1, 80),
    "glm-ocr": Shape(8, 2, 128, causal=True),
    "embeddinggemma": Shape(1, 3, 256, window=257),
    "mpnet": Shape(12, 1, 64, terms=("heads",)),
    "deberta": Shape(12, 1, 64, terms=("queries", "keys")),
    "deberta in float32": Shape(12, 1, 64, dtype=FULL, terms=("queries", "keys")),
    "minilm in float32": Shape(12, 1, 32, dtype=FULL),
    "paddleocr in float32": Shape(16, 1, 72, dtype=FULL),
    "glm-ocr in float32": Shape(8, 2, 128, dtype=FULL),
    "embeddinggemma in float32": Shape(1, 3, 256, dtype=FULL),
}


@pytest.mark.cases(thorough=2)
@pytest.mark.parametrize(
    ("name", "target"),
    core(
        further=[("paddleocr", SM_90), ("glm-ocr", SM_90)],
        slow=[(name, target) for target in TARGETS for name in SHAPES],
    ),
    ids=lambda value: getattr(value, "level", value),
)
def test_segments_as_they_are_built(tmp_path: Path, name: str, target: Target) -> None:
    """Nothing is kept in local memory, and all fits the card."""
    plan, kernels = SHAPES[name].plan(), KernelNumbers()
    calls = segment_attention(Operands(plan), Work(plan, Group(kernel="", first=0)))
    launches = tuple(kernels.launch(call, 0) for call in calls)
    built = built_launches(
        tmp_path, target, Launches(kernels=tuple(kernels.specs), launches=launches)
    )
    assert unexpected_faults(built, tmp_path, target) == []
