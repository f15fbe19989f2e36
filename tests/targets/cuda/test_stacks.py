"""How stacks lie in the file: what belongs to one index together, each matrix aligned."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ingot.artifact.formats import Format
from ingot.artifact.plan import Buffer, Plan
from ingot.artifact.spec import Spec
from ingot.artifact.tensors import PAGE, read_header
from ingot.compiler.interpret import Value
from ingot.errors import InternalError
from ingot.ops.scaled import Scaled
from ingot.ops.stacks import stack_of
from ingot.runtime.devices.mapped_file import weight_offsets
from ingot.targets.cuda.pack import pack
from ingot.targets.cuda.unpack import unpacked
from ingot.targets.cuda.weights import matrix_bytes, nbytes_of
from ingot.targets.stacks import with_stacks
from tests.targets.cuda.matrices import drawn, int4, int8, with_zeros
from tests.targets.sketch import LIMITS

COUNT, SIZE, INNER = 3, 64, 36
FORMATS = {
    "float32": (Format("float32"), Format("float32")),
    "bfloat16": (Format("bfloat16"), Format("bfloat16")),
    "integers": (int4(32, 64), int8(36)),
    "zeros": (with_zeros(int4(32, 32)), with_zeros(int8(36))),
    "blocks in pairs": (with_zeros(int4(16, 16)), with_zeros(int8(16))),
    "zeros and multipliers": (with_zeros(int4(32, 64)), with_zeros(int4(16, 64))),
}


class Stacked:
    """A plan with two stacks of one module and a vector before them, and the matrices of each."""

    def __init__(self, stored: str) -> None:
        shapes = ((COUNT, 2 * INNER, SIZE), (COUNT, SIZE, INNER))
        self.stacks = [
            Buffer(name=f"m.experts.{name}", format=form, shape=shape, kind="weight")
            for name, form, shape in zip(("gate_up", "down"), FORMATS[stored], shapes, strict=True)
        ]
        vector = Buffer(name="norm", format=Format("float32"), shape=(SIZE,), kind="weight")
        plan = Plan(limits=LIMITS, spec=Spec(), buffers=(vector, *self.stacks), instructions=())
        self.plan = with_stacks(plan, {each.name: matrix_bytes(each) for each in self.stacks})
        self.matrices: dict[str, list[Value]] = {
            b.name: [drawn(b.format, *map(int, b.shape[1:]), seed=i) for i in range(COUNT)]
            for b in self.stacks
        }
        self.asked: list[str] = []

    def read(self, name: str) -> torch.Tensor:
        if name == "norm":
            return torch.ones(SIZE)
        value = self._matrix(name)
        assert isinstance(value, torch.Tensor)
        return value

    def matrix(self, name: str) -> Scaled:
        value = self._matrix(name)
        assert isinstance(value, Scaled)
        return value

    def _matrix(self, name: str) -> Value:
        self.asked.append(name)
        stack, index = stack_of(name)
        return self.matrices[stack][index]

    def packed(self, path: Path) -> None:
        pack(path, self.plan, self.read, self)


@pytest.mark.parametrize("stored", FORMATS)
def test_matrices_of_an_index_lie_together_and_come_back(tmp_path: Path, stored: str) -> None:
    """They are read one by one, in the order of the file."""
    given, path = Stacked(stored), tmp_path / "w.safetensors"
    given.packed(path)
    names = [f"m.experts.{name}.{i}" for i in range(COUNT) for name in ("gate_up", "down")]
    assert given.asked == names
    with path.open("rb") as file:
        header = read_header(file.fileno(), path.name)
    assert [*header.tensors] == ["m.experts", "norm"]
    held = header.tensors["m.experts"]
    assert held.offset % PAGE == 0 and held.nbytes == sum(map(nbytes_of, given.stacks))
    _, gate_up, down = given.plan.of_kind("weight")
    assert weight_offsets(given.plan, header, path.name)[1:] == [
        held.offset,
        held.offset + matrix_bytes(gate_up),
    ]
    assert (down.offset, down.row_stride) == (matrix_bytes(gate_up), held.nbytes // COUNT)
    assert down.offset % 64 == down.row_stride % 64 == 0
    raw = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)

    def bytes_of(name: str) -> torch.Tensor:
        buffer = given.plan.buffer(name)
        size = buffer.row_stride - buffer.offset
        return raw.as_strided(
            (COUNT, size), (buffer.row_stride, 1), held.offset + buffer.offset
        ).clone()

    for buffer in (gate_up, down):
        whole = unpacked(bytes_of)(buffer)
        for index, wanted in enumerate(given.matrices[buffer.name]):
            assert all(map(torch.equal, parts(whole[index]), parts(wanted)))


def parts(value: Value) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    found = value.values, value.scales, value.multipliers, value.zeros
    return [part for part in found if part is not None]


def test_a_matrix_of_another_shape_is_noticed(tmp_path: Path) -> None:
    given = Stacked("float32")
    given.matrices["m.experts.down"][1] = torch.zeros(SIZE, INNER + 1)
    with pytest.raises(InternalError, match=r"m\.experts\.down\.1 became"):
        given.packed(tmp_path / "w")
