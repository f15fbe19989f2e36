"""How stacks lie in the file: what belongs to one index together, each matrix from a page on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ingot.artifact.formats import Format
from ingot.artifact.plan import Buffer, Plan
from ingot.artifact.spec import Spec
from ingot.artifact.tensors import PAGE, read_header
from ingot.compiler.quantization.search import quantize_rows
from ingot.errors import ArtifactError, InternalError
from ingot.ops.scaled import Operand, Scaled
from ingot.ops.stacks import stack_of
from ingot.runtime.devices.mapped_file import stacks_end, weight_offsets
from ingot.targets.cpu.generate import weight_layouts
from ingot.targets.cpu.pack import pack
from ingot.targets.cpu.unpack import unpack_stack
from ingot.targets.cpu.weights import layout_of, num_bytes, with_stacks
from tests.targets.sketch import LIMITS, normal

COUNT, SIZE, INNER = 3, 64, 36
FORMATS = {
    "float32": (Format("float32"),) * 2,
    "bfloat16": (Format("bfloat16"),) * 2,
    "int4": (Format("int4", 64, 32, "float16"), Format("int8", 36, 36, "float16")),
}


class Stacked:
    """A plan with two stacks of one module and a vector before them, and their values."""

    def __init__(self, stored: str) -> None:
        forms = FORMATS[stored]
        shapes = ((COUNT, 2 * INNER, SIZE), (COUNT, SIZE, INNER))
        vector = Buffer(name="norm", format=Format("float32"), shape=(SIZE,), kind="weight")
        stacks = [
            Buffer(name=f"m.experts.{name}", format=form, shape=shape, kind="weight")
            for name, form, shape in zip(("gate_up", "down"), forms, shapes, strict=True)
        ]
        plan = Plan(limits=LIMITS, spec=Spec(), buffers=(vector, *stacks), instructions=())
        self.layouts = tuple(
            layout_of(b, multiplied=b is not vector) for b in plan.of_kind("weight")
        )
        self.plan = with_stacks(plan, self.layouts)
        drawn = {b.name: normal(*map(int, b.shape), seed=i) for i, b in enumerate(stacks)}
        self.values: dict[str, Operand] = {"norm": torch.ones(SIZE)}
        for b in stacks:
            x = drawn[b.name]
            scaled = b.format.is_scaled
            self.values[b.name] = (
                quantize_rows(x, b.format) if scaled else x.to(getattr(torch, stored))
            )

    def read(self, name: str) -> torch.Tensor:
        value = self._value(name)
        assert isinstance(value, torch.Tensor)
        return value

    def matrix(self, name: str) -> Scaled:
        value = self._value(name)
        assert isinstance(value, Scaled)
        return value

    def _value(self, name: str) -> Operand:
        if name in self.values:
            return self.values[name]
        stack, index = stack_of(name)
        return self.values[stack][index]


@pytest.mark.parametrize("stored", FORMATS)
def test_matrices_of_an_index_lie_together_and_come_back(tmp_path: Path, stored: str) -> None:
    given, path = Stacked(stored), tmp_path / "w.safetensors"
    pack(path, given.plan, given.layouts, given.read, given)
    with path.open("rb") as file:
        header = read_header(file.fileno(), path.name)
    assert [*header.tensors] == ["m.experts", "norm"]
    held = header.tensors["m.experts"]
    assert held.offset % PAGE == 0 and stacks_end(given.plan, header) == held.offset + held.nbytes
    _, gate_up, down = given.plan.of_kind("weight")
    offsets = weight_offsets(given.plan, header, path.name)
    assert offsets[1:] == [held.offset, held.offset + down.offset]
    assert down.offset % PAGE == gate_up.row_stride % PAGE == 0 and gate_up.offset == 0
    assert gate_up.row_stride == down.row_stride == held.nbytes // COUNT
    assert given.plan.stack_bytes == held.nbytes
    assert down.offset >= num_bytes(given.layouts[1].half) * 2
    raw = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
    for layout, buffer, offset in zip(given.layouts[1:], (gate_up, down), offsets[1:], strict=True):
        size = buffer.row_stride - buffer.offset
        data = raw.as_strided((COUNT, size), (buffer.row_stride, 1), offset)
        back, wanted = unpack_stack(layout, data), given.values[buffer.name]
        for got, want in zip(parts(back), parts(wanted), strict=True):
            assert torch.equal(got, want)


def parts(value: Operand) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [
        value.values,
        value.scales,
        *([value.multipliers] if value.multipliers is not None else []),
    ]


def test_a_matrix_of_another_shape_is_noticed(tmp_path: Path) -> None:
    given = Stacked("float32")
    given.values["m.experts.down"] = torch.zeros(COUNT, SIZE, INNER + 1)
    with pytest.raises(InternalError, match=r"m\.experts\.down\.0 is \(64, 37\)"):
        pack(tmp_path / "w", given.plan, given.layouts, given.read, given)


def test_a_tensor_that_is_too_small_for_its_stacks_is_refused(tmp_path: Path) -> None:
    given, path = Stacked("float32"), tmp_path / "w.safetensors"
    pack(path, given.plan, given.layouts, given.read, given)
    with path.open("rb") as file:
        header = read_header(file.fileno(), path.name)
    larger = Stacked("float32")
    for buffer in larger.plan.buffers:
        object.__setattr__(buffer, "row_stride", 4 * buffer.row_stride)
    with pytest.raises(ArtifactError, match=r"m\.experts\.gate_up"):
        weight_offsets(larger.plan, header, path.name)


def test_plans_without_stacks_are_as_they_were() -> None:
    vector = Buffer(name="norm", format=Format("float32"), shape=(SIZE,), kind="weight")
    plan = Plan(limits=LIMITS, spec=Spec(), buffers=(vector,), instructions=())
    assert with_stacks(plan, weight_layouts(plan)) == plan and plan.stack_bytes == 0
