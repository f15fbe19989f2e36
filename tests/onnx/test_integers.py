"""The integers of an artifact as the file has them, and as onnxruntime reads them."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from ingot.artifact.formats import Format, Storage
from ingot.compiler.quantization.search import quantize_rows
from ingot.onnx.integers import Integers, dequantized, fits, narrowest
from ingot.ops.scaled import Scaled
from tests.support.samples import weight
from tests.targets.cpu.matrices import multipliers_beside_zeros, zeros_beside

COLUMNS = (256, 300, 37, 1)
PARTS = ("integers", "scales", "zeros")


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("storage", [Storage(8, 64), Storage(4, 32), Storage(4, 128)])
def test_a_file_has_the_numbers_of_the_artifact(storage: Storage, columns: int) -> None:
    form = storage.of(columns)
    matrix = quantize_rows(weight(torch.Generator().manual_seed(0), 6, columns), form)
    stored = Integers((6, columns), form, torch.float32, lambda: matrix)
    integers, scales = (stored.makes[name]() for name in ("integers", "scales"))
    assert integers.shape == stored.integers.shape and integers.dtype == torch.uint8
    assert scales.shape == stored.scales.shape
    got = dequantized(integers.flatten(1), scales, form.bits, form.group)
    torch.testing.assert_close(got[:, :columns], matrix.dequantize(), rtol=1e-6, atol=0)
    assert not got[:, columns:].any(), "zeros fill up the last group"


def drawn(rows: int, columns: int, form: Format) -> Scaled:
    """Integers of the whole range; every group has a scale, and in some formats a zero."""
    rng = torch.Generator().manual_seed(columns)
    groups, top = form.blocks_of(columns), 1 << (form.bits - 1)

    def integers(width: int) -> torch.Tensor:
        return torch.randint(-top, top, (rows, width), generator=rng).to(torch.int8)

    scales = 0.01 + torch.rand(rows, groups, generator=rng)
    zeros = integers(groups) if form.zeros else None
    return Scaled(integers(columns), None, scales.half().float(), zeros, block=form.block)


def with_both(rows: int, columns: int, form: Format) -> Scaled:
    """Multipliers of the whole range, and zeros beside them that reach both of their ends."""
    rng = torch.Generator().manual_seed(columns)
    groups, top = -(-columns // form.group), 1 << (form.bits - 1)
    values = torch.randint(-top, top, (rows, columns), generator=rng).to(torch.int8)
    nibbles = torch.randint(-8, 8, (rows, groups), generator=rng)
    multipliers = multipliers_beside_zeros(nibbles, form.bits)
    ends = torch.randint(-top, top, (rows, groups), generator=rng)
    zeros = zeros_beside(multipliers, ends, form.bits)
    scales = (0.01 + torch.rand(rows, form.blocks_of(columns), generator=rng)).half().float()
    return Scaled(values, multipliers, scales, zeros, block=form.block, group=form.group)


def by_onnxruntime(x: np.ndarray, parts: list[np.ndarray], form: Format) -> np.ndarray:
    """MatMulNBits alone, x [T, I] -> [T, O]."""
    rows, columns = parts[0].shape[0], x.shape[1]
    node = helper.make_node(
        "MatMulNBits", ["x", *PARTS[: len(parts)]], ["y"], domain="com.microsoft",
        K=columns, N=rows, bits=form.bits, block_size=form.group, accuracy_level=1,
    )  # fmt: skip
    given, made = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [len(x), size])]
        for name, size in (("x", columns), ("y", rows))
    )
    named = zip(parts, PARTS, strict=False)
    weights = [numpy_helper.from_array(each, name) for each, name in named]
    graph = helper.make_graph([node], "product", given, made, weights)
    versions = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=versions, ir_version=11)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(["y"], {"x": x})[0]


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("zeros", [False, True], ids=["", "zeros"])
@pytest.mark.parametrize(("bits", "group"), [(4, 16), (4, 128), (8, 32)])
def test_onnxruntime_reads_what_is_written(
    bits: int, group: int, zeros: bool, columns: int
) -> None:
    """Against products in float64. Odd numbers of groups leave half a byte of zeros unused."""
    form = Storage(bits, group, multipliers=False, zeros=zeros).of(columns)
    assert_read(drawn(5, columns, form), form, form)


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize(("bits", "group"), [(4, 32), (5, 64), (6, 32)])
def test_zeros_beside_multipliers_are_written_as_int8(bits: int, group: int, columns: int) -> None:
    form = Storage(bits, group, zeros=True).of(columns)
    assert form.has_multipliers and form.zeros
    assert_read(with_both(5, columns, form), form, Storage(8, 128).of(columns))


def assert_read(matrix: Scaled, form: Format, written: Format) -> None:
    """What is written of a matrix has its numbers, exactly, and so have products with it."""
    columns = matrix.shape[1]
    stored = Integers((5, columns), form, torch.float32, lambda: matrix)
    parts = [make() for make in stored.makes.values()]
    assert [part.shape for part in parts] == [getattr(stored, name).shape for name in stored.makes]
    x = np.random.default_rng(columns).standard_normal((3, columns)).astype(np.float32)
    wide = matrix.scales.double().repeat_interleave(matrix.block, 1)[:, :columns]
    numbers = matrix.integers().double() * wide
    expected = x.astype(np.float64) @ numbers.numpy().T
    got = by_onnxruntime(x, [part.numpy() for part in parts], written)
    scale = np.abs(x).astype(np.float64) @ np.abs(numbers.numpy()).T
    assert (np.abs(got - expected) <= 1e-6 * scale).all()
    unshifted = dequantized(
        parts[0].flatten(1), *parts[1:2], written.bits, written.group, *parts[2:]
    )
    torch.testing.assert_close(unshifted[:, :columns], numbers.float(), rtol=1e-6, atol=0)


def test_zeros_in_the_other_order_are_told_apart() -> None:
    """The control: the halves of a byte are not the other way round."""
    form = Storage(4, 16, multipliers=False, zeros=True).of(64)
    matrix = drawn(5, 64, form)
    stored = Integers((5, 64), form, torch.float32, lambda: matrix)
    integers, scales, zeros = (make().numpy() for make in stored.makes.values())
    x = np.ones((1, 64), np.float32)
    swapped = (zeros << 4) | (zeros >> 4)
    right, wrong = (by_onnxruntime(x, [integers, scales, z], form) for z in (zeros, swapped))
    assert np.abs(right - wrong).max() > 1


def test_only_groups_that_the_operator_takes_fit() -> None:
    assert fits(256, Storage(4, 32).of(256))
    assert fits(256, Storage(4, 32, multipliers=False, zeros=True).of(256))
    assert fits(256, Storage(4, 32, zeros=True).of(256))
    assert not fits(96, Format("int4", 96, 32, "float16", zeros=True))  # its blocks are of 96
    assert fits(256, Storage(6, 32, zeros=True).of(256))
    assert not fits(256, Storage(6, 32, multipliers=False).of(256))


def test_int4_with_zeros_stays_int4() -> None:
    """In the groups that were asked for; only other bits have no form of their own in the file."""
    assert narrowest(Storage(4, 64, zeros=True)) == Storage(4, 64, multipliers=False, zeros=True)
    for storage in (Storage(4, 64), Storage(8, 128), Storage(6, 32, zeros=True)):
        assert narrowest(storage) == storage
    assert not fits(96, Storage(8, 0).of(96))  # one scale for a row of 96
    assert fits(80, Storage(8, 64).of(80))
