"""Matrices in every layout, from the bytes that another program writes of the same integers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from ingot.artifact.formats import Storage
from ingot.errors import CheckpointError
from ingot.models.checkpoints.checkpoint import Checkpoint, scaled
from ingot.models.checkpoints.formats.floats import FLOAT4_DOUBLED, FLOAT8_VALUES
from ingot.models.checkpoints.formats.quantized import Decoded, storage_of
from tests.support.checkpoints import build
from tests.support.core import core
from tests.support.quantized_checkpoints import FLOAT4, LAYOUTS, Known, rewrite
from tests.support.tiny_models import save_random

STORED = {
    "gptq": Storage(4, 32, multipliers=False),
    "gptq-8bit": Storage(8, 32, multipliers=False),
    "gptq-channel": Storage(4, 64, multipliers=False),
    "awq": Storage(4, 32, multipliers=False, zeros=True),
    "int-quantized": Storage(8, 64, multipliers=False),
}
Q = "model.layers.0.self_attn.q_proj.weight"


def written(folder: Path, layout: str) -> tuple[Checkpoint, dict[str, Known]]:
    known = rewrite(save_random("llama", folder), LAYOUTS[layout])
    return build(folder)[0], known


@pytest.mark.parametrize(
    "layout", core("gptq-ordered", "awq", "pack-quantized-zeros", "int-quantized", further=LAYOUTS)
)
def test_numbers_and_integers_are_those_that_were_written(layout: str, tmp_path: Path) -> None:
    checkpoint, known = written(tmp_path, layout)
    with checkpoint:
        assert checkpoint.quantized.keys() == known.keys()
        assert len(known) == 2 * 7
        for name, each in known.items():
            stored, numbers = checkpoint.scaled(name), each.numbers()[:, each.order]
            middle = 1 << (each.bits - 1)
            assert torch.equal(stored.values.int() + middle, each.codes[:, each.order].int())
            zeros = torch.zeros(1) if stored.zeros is None else stored.zeros
            zeros = zeros.int().expand(stored.scales.shape)
            assert torch.equal(zeros + middle, repeated(each, stored).int())
            assert torch.equal(stored.dequantize(), numbers)
            assert torch.equal(checkpoint.read(name), each.numbers())
            assert torch.equal(checkpoint.scaled(name, 8, 13).dequantize(), numbers[8:13])
            assert torch.equal(checkpoint.read(name, 31), each.numbers()[31:])
    if layout in STORED:
        assert checkpoint.quantized[Q].encoding.storage == STORED[layout]


def repeated(known: Known, stored) -> torch.Tensor:
    """The zeros of the groups that a layout's groups are cut into."""
    return known.zeros.repeat_interleave(stored.scales.shape[1] // known.zeros.shape[1], 1)


def test_another_bit_of_a_file_is_another_integer(tmp_path: Path) -> None:
    checkpoint, known = written(tmp_path, "gptq")
    checkpoint.close()
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors[Q.replace(".weight", ".qweight")][0, 3] ^= 1 << 4  # the second input of output 3
    save_file(tensors, path, metadata={"format": "pt"})
    checkpoint, _ = build(tmp_path)
    with checkpoint:
        differs = checkpoint.scaled(Q).values + 8 != known[Q].codes
    assert differs.nonzero().tolist() == [[3, 1]]


def test_floats_of_eight_bits_are_those_of_torch() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    theirs = codes.view(torch.float8_e4m3fn).float().numpy()
    assert np.array_equal(FLOAT8_VALUES, theirs, equal_nan=True)
    assert np.isnan(FLOAT8_VALUES).sum() == 2


def test_doubled_floats_of_four_bits_are_integers() -> None:
    assert torch.equal(torch.from_numpy(FLOAT4_DOUBLED).float(), 2 * FLOAT4)


@pytest.mark.parametrize(
    ("scale", "exact"), [(2.0**-17, True), (2.0**-24, True), (2.0**-25, False), (65536.0, False)]
)
def test_a_scale_is_exact_or_refused(scale: float, exact: bool, tmp_path: Path) -> None:
    """bfloat16 reaches further than float16 on either side."""
    checkpoint, known = written(tmp_path, "int-quantized")
    checkpoint.close()
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    name = Q.replace(".weight", ".weight_scale")
    tensors[name][5, 0] = scale
    save_file(tensors, path, metadata={"format": "pt"})
    checkpoint, _ = build(tmp_path)
    with checkpoint:
        numbers = checkpoint.read(Q)
        assert torch.equal(numbers[5], (known[Q].codes[5] - 128).float() * scale)
        if exact:
            assert torch.equal(checkpoint.scaled(Q).dequantize(), numbers)
            return
        with pytest.raises(CheckpointError, match="float16 cannot hold") as caught:
            checkpoint.scaled(Q)
    assert Q in caught.value.found and "--dequantize" in caught.value.hint


def test_a_group_of_zeros_needs_no_scale(tmp_path: Path) -> None:
    checkpoint, _ = written(tmp_path, "int-quantized")
    checkpoint.close()
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors[Q][5] = 0
    tensors[Q.replace(".weight", ".weight_scale")][5, 0] = 2.0**-100
    save_file(tensors, path, metadata={"format": "pt"})
    checkpoint, _ = build(tmp_path)
    with checkpoint:
        assert torch.equal(checkpoint.scaled(Q).dequantize(), checkpoint.read(Q))


@pytest.mark.parametrize(
    ("bits", "columns", "group", "zeros", "storage"),
    [
        (4, 256, 256, False, Storage(4, 128, multipliers=False)),
        (4, 192, 192, True, Storage(4, 64, multipliers=False, zeros=True)),
        (4, 200, 200, False, Storage(4, 128, multipliers=False)),  # the last 72 are a short one
        (8, 200, 200, True, Storage(8, 128, multipliers=False, zeros=True)),
        (4, 160, 16, False, Storage(4, 16, multipliers=False)),
        (4, 144, 48, True, Storage(4, 16, multipliers=False, zeros=True)),
        (4, 160, 20, False, Storage(8, 20, multipliers=False)),  # in int8, which takes any group
        (8, 144, 48, True, Storage(8, 48, multipliers=False, zeros=True)),
        (8, 60, 30, False, None),
    ],
)
def test_groups_are_cut_into_those_that_kernels_take(
    bits: int, columns: int, group: int, zeros: bool, storage: Storage | None
) -> None:
    assert storage_of(bits, columns, group, zeros=zeros) == storage
    if storage is None:
        return
    rng, groups = np.random.default_rng(0), columns // group
    values = rng.integers(-8, 8, (3, columns), dtype=np.int8)
    scales = rng.integers(1, 100, (3, groups)).astype(np.float32) / 64
    own = rng.integers(-8, 8, (3, groups), dtype=np.int16) if zeros else None
    rows = Decoded(values, group, scales, own)
    made = scaled("w", rows, storage)
    assert torch.equal(made.dequantize(), torch.from_numpy(rows.numbers()))
    assert made.block == storage.of(columns).block
