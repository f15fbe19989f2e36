"""Writes tiny checkpoints with matrices in floats of 8 or 4 bits, as other programs store them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.support.quantized_checkpoints import FLOAT4, Tensors, scheme, set_config

BLOCK = 32
# The numbers [O, K] of a matrix of that shape, and the tensors that hold them by their ends.
Write = Callable[[tuple[int, int], torch.Generator], tuple[Tensor, Tensors]]


@dataclass(frozen=True)
class FloatLayout:
    """A layout: its writer and its quantization_config."""

    write: Write
    config: Mapping[str, Any]


def rewrite_floats(model_dir: Path, layout: FloatLayout, seed: int = 0) -> dict[str, Tensor]:
    """Stores the matrices of the layers of a model in a layout; returns the numbers they are."""
    rng = torch.Generator().manual_seed(seed)
    path = model_dir / "model.safetensors"
    tensors, known = load_file(path), {}
    for name in sorted(tensors):
        if ".layers." in name and "_proj" in name and name.endswith(".weight"):
            rows, columns = tensors.pop(name).shape
            known[name], parts = layout.write((rows, columns), rng)
            for end, tensor in parts.items():
                tensors[name.removesuffix(".weight") + end] = tensor.contiguous()
    save_file(tensors, path, metadata={"format": "pt"})
    set_config(model_dir, layout.config)
    return known


def plain_floats(model_dir: Path, known: Mapping[str, Tensor]) -> None:
    """Stores the numbers instead: the same model in float32, which any program reads."""
    path = model_dir / "model.safetensors"
    stems = tuple(name.removesuffix("weight") for name in known)
    tensors = load_file(path).items()
    rest = {n: t for n, t in tensors if not n.startswith(stems) or n.endswith(".bias")}
    save_file(rest | dict(known), path, metadata={"format": "pt"})
    set_config(model_dir, None)


def spread(scales: Tensor, rows: int, columns: int, shape: tuple[int, int]) -> Tensor:
    """Every scale for so many rows and columns."""
    wide = scales.float().repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    return wide[: shape[0], : shape[1]]


def float8(shape: tuple[int, int], rng: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=rng).to(torch.float8_e4m3fn)


def drawn_scales(rows: int, columns: int, width: int, rng: torch.Generator) -> Tensor:
    """With which numbers are about as large as a model's with rows of that width."""
    return (torch.rand(rows, columns, generator=rng) + 0.5) / width**0.5


def fp8_block(shape: tuple[int, int], rng: torch.Generator) -> tuple[Tensor, Tensors]:
    """DeepSeek's: a scale for each block of rows and columns, of which the last may be short."""
    values = float8(shape, rng)
    scales = drawn_scales(*(-(-size // BLOCK) for size in shape), shape[1], rng)
    numbers = values.float() * spread(scales, BLOCK, BLOCK, shape)
    return numbers, {".weight": values, ".weight_scale_inv": scales}


def fp8_tensor(shape: tuple[int, int], rng: torch.Generator) -> tuple[Tensor, Tensors]:
    """Ministral 3's: one scale, without dimensions, and one of activations beside it."""
    values, scale = float8(shape, rng), drawn_scales(1, 1, shape[1], rng).reshape(())
    parts = {".weight": values, ".weight_scale_inv": scale, ".activation_scale": torch.tensor(1.5)}
    return values.float() * scale, parts


def float_quantized(shape: tuple[int, int], rng: torch.Generator) -> tuple[Tensor, Tensors]:
    """compressed-tensors: a scale in bfloat16 for each row."""
    values, scales = float8(shape, rng), drawn_scales(shape[0], 1, shape[1], rng).bfloat16()
    return values.float() * scales.float(), {".weight": values, ".weight_scale": scales}


def nvfp4(shape: tuple[int, int], rng: torch.Generator) -> tuple[Tensor, Tensors]:
    """compressed-tensors: codes of 4 bits, and scales in float8 that are divided by another."""
    rows, columns = shape
    codes = torch.randint(0, 16, shape, generator=rng)
    divisor = torch.tensor([4.0 * columns**0.5])
    scales = (torch.rand(rows, columns // 16, generator=rng) * 2 + 1).to(torch.float8_e4m3fn)
    numbers = FLOAT4[codes] * spread(scales.float() / divisor, 1, 16, shape)
    return numbers, {
        ".weight_packed": (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8),
        ".weight_scale": scales,
        ".weight_global_scale": divisor,
    }


def _config(bits: int, strategy: str, form: str, **more: Any) -> dict[str, Any]:
    return scheme(bits, strategy, type="float", **more) | {"format": form}


FLOAT_LAYOUTS: dict[str, FloatLayout] = {
    "fp8-block": FloatLayout(
        fp8_block,
        {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK], "fmt": "e4m3"}
        | {"activation_scheme": "dynamic"},
    ),
    "fp8-tensor": FloatLayout(
        fp8_tensor,
        {"quant_method": "fp8", "weight_block_size": None, "activation_scheme": "static"},
    ),
    "float-quantized": FloatLayout(
        float_quantized, _config(8, "channel", "float-quantized", dynamic=False)
    ),
    "nvfp4": FloatLayout(nvfp4, _config(4, "tensor_group", "nvfp4-pack-quantized", group_size=16)),
}
