"""Files of compressed-tensors: the numbers that `transformers` reads from them by that package."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, CompressedTensorsConfig

from tests.support.checkpoints import Tensors, build, edit
from tests.support.core import core
from tests.support.float_checkpoints import FLOAT_LAYOUTS, rewrite_floats
from tests.support.quantized_checkpoints import LAYOUTS, rewrite
from tests.support.tiny_models import save_random

# The package reads no orders of columns any more, which models of earlier versions have.
INTEGERS = [name for name in LAYOUTS if "quantized" in name and "ordered" not in name]
FLOATS = ["float-quantized", "nvfp4"]
ROUNDING = 2**-8  # the package rounds its products to bfloat16, the dtype of scales
Q = "model.layers.0.self_attn.q_proj"


def written(layout: str, folder: Path) -> Path:
    model_dir = save_random("llama", folder, tokenizer=True)
    if layout in FLOATS:
        rewrite_floats(model_dir, FLOAT_LAYOUTS[layout])
    else:
        rewrite(model_dir, LAYOUTS[layout])
    return model_dir


def judge(model_dir: Path) -> nn.Module:
    """The model on the numbers that the package makes of the tensors."""
    return AutoModelForCausalLM.from_pretrained(
        model_dir,
        dtype=torch.float32,
        quantization_config=CompressedTensorsConfig(dequantize=True),
    )


def differing(model_dir: Path, model: nn.Module) -> dict[str, int]:
    """How many numbers of each quantized matrix are not those of the package."""
    found = {}
    with build(model_dir)[0] as checkpoint:
        for name in checkpoint.quantized:
            ours, theirs = checkpoint.read(name), model.get_parameter(name).detach()
            found[name] = int(((ours - theirs).abs() > ROUNDING * ours.abs()).sum())
    assert len(found) == 2 * 7
    return found


@pytest.mark.parametrize("layout", core(further=["pack-quantized-zeros"], slow=INTEGERS + FLOATS))
def test_numbers_are_those_of_the_package(layout: str, tmp_path: Path) -> None:
    model_dir = written(layout, tmp_path)
    assert not any(differing(model_dir, judge(model_dir)).values())


@pytest.mark.parametrize("layout", ["pack-quantized", "int-quantized"])
def test_zero_points_of_symmetric_weights_are_not_read(layout: str, tmp_path: Path) -> None:
    """Some programs write them, of whatever numbers: `symmetric` says that they are none."""

    def add(tensors: Tensors) -> None:
        scales = tensors[f"{Q}.weight_scale"]
        packed = f"{Q}.weight_packed" in tensors
        rows = -(-len(scales) // 8) if packed else len(scales)
        zeros = torch.full((rows, scales.shape[1]), 7, dtype=torch.int32 if packed else torch.int8)
        tensors[f"{Q}.weight_zero_point"] = zeros

    model_dir = written(layout, tmp_path)
    with build(model_dir)[0] as checkpoint:
        before = checkpoint.read(f"{Q}.weight").clone()
    with build(edit(model_dir, add))[0] as checkpoint:
        assert torch.equal(checkpoint.read(f"{Q}.weight"), before)
        assert "zeros" not in checkpoint.quantized[f"{Q}.weight"].encoding.label


@pytest.mark.slow
def test_another_bit_is_another_number(tmp_path: Path) -> None:
    """The control: the lowest bit of one integer."""

    def change(tensors: Tensors) -> None:
        tensors[f"{Q}.weight_packed"][3, 1] ^= 1

    model_dir = written("pack-quantized", tmp_path)
    model = judge(model_dir)
    found = differing(edit(model_dir, change), model)
    assert {name: count for name, count in found.items() if count} == {f"{Q}.weight": 1}
