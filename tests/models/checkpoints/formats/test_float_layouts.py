"""Floats of 8 and 4 bits, judged by what `transformers` makes of the same tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from ingot.artifact.formats import Storage
from ingot.errors import raise_fault
from ingot.models.checkpoints.checkpoint import scaled
from ingot.models.checkpoints.formats import compressed_tensors, float8, mxfp4
from ingot.models.checkpoints.formats.quantized import Array, QuantizedTensor
from ingot.models.checkpoints.formats.settings import QuantizationKeys
from ingot.models.checkpoints.mapped_file import TensorInfo
from tests.support.quantized_checkpoints import FLOAT4, scheme

NAMES = {
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.uint8: "U8",
}
Tensors = dict[str, torch.Tensor]


def found(find: Callable[..., Any], config: dict[str, Any], tensors: Tensors) -> QuantizedTensor:
    infos = {
        name: TensorInfo(name, NAMES[t.dtype], tuple(t.shape), 0, 0) for name, t in tensors.items()
    }
    (matrix,) = find(QuantizationKeys(config), infos, raise_fault)
    return matrix


def view(tensors: Tensors) -> Callable[[TensorInfo], Array]:
    bits = {torch.float8_e4m3fn: torch.uint8, torch.bfloat16: torch.uint16}
    return lambda info: (t := tensors[info.name]).view(bits.get(t.dtype, t.dtype)).numpy()


def numbers(matrix: QuantizedTensor, tensors: Tensors, first: int, last: int) -> torch.Tensor:
    return torch.from_numpy(matrix.encoding.rows(view(tensors), first, last).numbers())


def random_float8(*shape: int, seed: int = 0) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 256, shape, generator=rng, dtype=torch.uint8)
    codes[codes & 127 == 127] = 0  # not a number
    return codes.view(torch.float8_e4m3fn)


@pytest.mark.parametrize("block", [(32, 16), (8, 96)])
def test_blocks_of_float8(block: tuple[int, int]) -> None:
    rows, columns = 96, 192
    scales = torch.rand(rows // block[0], columns // block[1]) + 0.1
    tensors = {"a.weight": random_float8(rows, columns), "a.weight_scale_inv": scales}
    matrix = found(float8.find_blocks, {"weight_block_size": list(block)}, tensors)
    assert matrix.name == "a.weight" and matrix.encoding.storage is None
    theirs = Fp8Dequantize(None)._dequantize_one(*tensors.values(), output_dtype=torch.float32)
    for first, last in ((0, rows), (5, 41)):
        assert torch.equal(numbers(matrix, tensors, first, last), theirs[first:last])


def test_the_last_blocks_may_be_short() -> None:
    tensors = {"a.weight": random_float8(70, 100), "a.weight_scale_inv": torch.rand(3, 4) + 0.1}
    matrix = found(float8.find_blocks, {"weight_block_size": [32, 32]}, tensors)
    wide = tensors["a.weight_scale_inv"].repeat_interleave(32, 0).repeat_interleave(32, 1)
    want = tensors["a.weight"].float() * wide[:70, :100]
    assert torch.equal(numbers(matrix, tensors, 0, 70), want)
    assert torch.equal(numbers(matrix, tensors, 60, 70), want[60:])


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_scale_a_matrix(shape: tuple[int, ...]) -> None:
    tensors = {
        "a.weight": random_float8(6, 8),
        "a.weight_scale_inv": torch.full(shape, 0.375),
        "a.activation_scale": torch.tensor(2.0),
    }
    matrix = found(float8.find_blocks, {"weight_block_size": None}, tensors)
    assert len(matrix.parts) == 3
    assert torch.equal(numbers(matrix, tensors, 2, 5), tensors["a.weight"].float()[2:5] * 0.375)


@pytest.mark.parametrize("strategy", ["tensor", "channel", "block"])
def test_float_quantized_of_compressed_tensors(strategy: str) -> None:
    shapes = {"tensor": (1,), "channel": (64, 1), "block": (2, 3)}
    scales = (torch.rand(shapes[strategy]) + 0.1).bfloat16()
    tensors = {"a.weight": random_float8(64, 96), "a.weight_scale": scales}
    more = {"block_structure": [32, 32]} if strategy == "block" else {}
    config = scheme(8, strategy, type="float", **more) | {"format": "float-quantized"}
    matrix = found(compressed_tensors.find, config, tensors)
    high, wide = (-(-n // m) for n, m in zip((64, 96), (*shapes[strategy], 1)[:2], strict=True))
    spread = scales.float().reshape(*(*shapes[strategy], 1)[:2])
    spread = spread.repeat_interleave(high, 0).repeat_interleave(wide, 1)
    want = tensors["a.weight"].float() * spread
    assert torch.equal(numbers(matrix, tensors, 3, 50), want[3:50])


def test_stacked_experts_of_mxfp4() -> None:
    """Exact in int8: the doubled codes with half the scale."""
    rng = torch.Generator().manual_seed(3)
    blocks = torch.randint(0, 256, (3, 10, 2, 16), generator=rng, dtype=torch.uint8)
    scales = torch.randint(104, 144, (3, 10, 2), generator=rng, dtype=torch.uint8)
    tensors = {"e.down_proj_blocks": blocks, "e.down_proj_scales": scales}
    matrix = found(mxfp4.find, {}, tensors)
    assert (matrix.name, matrix.shape) == ("e.down_proj", (3, 10, 64))
    # Theirs comes out as [experts, inputs, outputs].
    theirs = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).transpose(1, 2)
    assert torch.equal(numbers(matrix, tensors, 0, 3), theirs)
    storage = matrix.encoding.storage
    assert storage == Storage(8, 32, multipliers=False)
    rows = matrix.encoding.rows(view(tensors), 1, 2)
    assert torch.equal(scaled("e", rows, storage).dequantize(), theirs[1:2])


def test_four_bits_of_compressed_tensors() -> None:
    rng = torch.Generator().manual_seed(4)
    packed = torch.randint(0, 256, (12, 32), generator=rng, dtype=torch.uint8)
    codes = torch.stack((packed & 15, packed >> 4), -1).flatten(1).long()
    powers = torch.randint(110, 140, (12, 2), generator=rng, dtype=torch.uint8)
    tensors = {"a.weight_packed": packed, "a.weight_scale": powers}
    config = scheme(4, "group", type="float", group_size=32)
    matrix = found(compressed_tensors.find, config | {"format": "mxfp4-pack-quantized"}, tensors)
    wide = torch.exp2(powers.float() - 127).repeat_interleave(32, 1)
    assert torch.equal(numbers(matrix, tensors, 0, 12), FLOAT4[codes] * wide)
    assert matrix.encoding.storage == Storage(8, 32, multipliers=False)
    tensors = {
        "a.weight_packed": packed,
        "a.weight_scale": random_float8(12, 4).float().abs().to(torch.float8_e4m3fn),
        "a.weight_global_scale": torch.tensor([3.0]),
    }
    config = scheme(4, "tensor_group", type="float", group_size=16)
    matrix = found(compressed_tensors.find, config | {"format": "nvfp4-pack-quantized"}, tensors)
    wide = (tensors["a.weight_scale"].float() / 3).repeat_interleave(16, 1)
    want = FLOAT4[codes] * wide
    assert np.allclose(numbers(matrix, tensors, 2, 9), want[2:9], rtol=1e-6, atol=0)
    assert matrix.encoding.storage is None
