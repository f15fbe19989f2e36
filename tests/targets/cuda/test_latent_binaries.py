"""The machine code of latent attention of published sizes: no gate finds a fault."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest

from ingot.artifact.architectures import ARCHITECTURES
from ingot.artifact.formats import DType, Format, rounded_rows
from ingot.artifact.launches import BuiltLaunches, Launches
from ingot.artifact.plan import Plan
from ingot.artifact.target import Target
from ingot.targets.cuda.generate import KernelNumbers, emit
from ingot.targets.cuda.operands import Operands
from ingot.targets.work import Work
from tests.support.core import core
from tests.targets.cuda.known_faults import unexpected_faults
from tests.targets.cuda.shapes import built_launches
from tests.targets.cuda.tiny import TARGETS
from tests.targets.sketch import STEP, Sketch

VALUES, TURNED, NOPE = 512, 64, 128  # of a row of DeepSeek-V2-Lite, and of a head


@dataclass(frozen=True)
class Layer:
    """The ops of latent attention in a layer of DeepSeek-V2-Lite."""

    dtype: DType = "bfloat16"
    in_int8: bool = False
    heads: int = 16

    def plan(self) -> Plan:
        s, size = Sketch(), VALUES + TURNED
        form = rounded_rows(TURNED) if self.in_int8 else Format(self.dtype)
        cache = s.latent_cache(size, form)
        s.call("kv_write", s.rows("k", 1, size, form=self.dtype), None, "slots", cache)
        stored = Format(self.dtype)
        k_b = s.add("k_b", stored, (self.heads * VALUES, NOPE), "weight")
        x = s.rows("x", self.heads * NOPE, form=self.dtype)
        s.call("head_linear", x, k_b, out="latent", form=self.dtype)
        q = s.rows("q", self.heads, size, form=self.dtype)
        attended = s.call(
            "paged_attention", q, cache, None, *STEP, scale=0.07, value_size=VALUES,
            out="attended", form=self.dtype, shape=(self.heads, VALUES),
        )  # fmt: skip
        row = s.view("row", attended, 0, self.heads * VALUES)
        v_b = s.add("v_b", stored, (self.heads * NOPE, VALUES), "weight")
        s.call("head_linear", row, v_b, form=self.dtype)
        return s.plan()

    def built(self, folder: Path, target: Target) -> BuiltLaunches:
        plan, kernels = self.plan(), KernelNumbers()
        operands = Operands(plan, ARCHITECTURES[target.level])
        launches = [
            kernels.launch(call, number)
            for number, group in enumerate(plan.kernels)
            for call in emit(operands, Work(plan, group))
        ]
        found = Launches(kernels=tuple(kernels.specs), launches=tuple(launches))
        return built_launches(folder, target, found)


LAYERS = {
    "bfloat16": Layer(),
    "int8": Layer(in_int8=True),
    "float16": Layer(dtype="float16", heads=128),
}
SM_90 = TARGETS[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, target",
    core(("bfloat16", SM_90), further=[("int8", SM_90)], slow=product(LAYERS, TARGETS)),
    ids=str,
)
def test_no_gate_finds_a_fault(tmp_path: Path, name: str, target: Target) -> None:
    built = LAYERS[name].built(tmp_path, target)
    assert unexpected_faults(built, tmp_path, target) == []
