"""Faults of experts, of quantized layouts and of GGUF files, through the command: a typed error
with the fix, and nothing left."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from tests.end_to_end.test_bad_input import Damage, check_refused
from tests.support.checkpoints import Tensors, edit
from tests.support.core import core
from tests.support.float_checkpoints import FLOAT_LAYOUTS, rewrite_floats
from tests.support.gguf_files import write_gguf
from tests.support.quantized_checkpoints import LAYOUTS, rewrite, set_config
from tests.support.tiny_models import save_random

EXPERT = "model.layers.1.mlp.experts.3.up_proj.weight"
ROUTER = "model.layers.1.mlp.gate.weight"
Q = "model.layers.0.self_attn.q_proj"
VERSION, TENSORS = 4, 8  # where a GGUF file says its version and how many tensors it has


def pop(name: str) -> Damage:
    return lambda model: edit(model, lambda tensors: tensors.pop(name))


def change(name: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Damage:
    def changed(tensors: Tensors) -> None:
        tensors[name] = make(tensors[name]).contiguous()

    return lambda model: edit(model, changed)


def add(name: str, *shape: int) -> Damage:
    return lambda model: edit(model, lambda tensors: tensors.update({name: torch.ones(shape)}))


def settings(layout: str, **values: Any) -> Damage:
    return lambda model: set_config(model, {**LAYOUTS[layout].config, **values})


def nothing(model: Path) -> None:
    """What is wrong is that an option is missing."""


# Model, layout, what is done to it, and what the error must name.
CHECKPOINTS: dict[str, tuple[str, str, Damage, str]] = {
    "an expert is missing": ("qwen3moe", "", pop(EXPERT), EXPERT),
    "an expert too many": (
        "qwen3moe", "", add(EXPERT.replace(".3.", ".7."), 40, 64), EXPERT.replace(".3.", ".7."),
    ),
    "an expert of another shape": (
        "qwen3moe", "", change(EXPERT, lambda t: t[:39]), f"{EXPERT} [39, 64] instead of [40, 64]",
    ),
    "a router of another size": ("qwen3moe", "", change(ROUTER, lambda t: t[:6]), ROUTER),
    "no scales": ("llama", "gptq", pop(f"{Q}.scales"), f"without {Q}.scales"),
    "scales alone": ("llama", "gptq", pop(f"{Q}.qweight"), f"{Q}.scales without"),
    "an order that gives a group too many columns": (
        "llama", "gptq", change(f"{Q}.g_idx", lambda t: 0 * t), f"{Q}.g_idx gives 64 columns",
    ),
    "zero points out of range": (
        "llama", "gptq", settings("gptq", checkpoint_format="gptq_v2"), "zero points out of range",
    ),
    "an unknown method": (
        "llama", "gptq", settings("gptq", quant_method="hqq"), "quant_method 'hqq'",
    ),
    "mixed formats": (
        "llama", "gptq", add(f"{Q}.weight_packed", 2), "another quantized format",
    ),
    "groups that do not divide": (
        "llama", "awq", settings("awq", group_size=40), "groups of 40 do not divide",
    ),
    "float8 without the option": ("llama", "fp8-block", nothing, "--dequantize"),
    "float8 without its scale": (
        "llama", "fp8-block", pop(f"{Q}.weight_scale_inv"), f"{Q}.weight without",
    ),
    "a scale of float8 alone": (
        "llama", "fp8-block", pop(f"{Q}.weight"), f"{Q}.weight_scale_inv without",
    ),
}  # fmt: skip
FIRST = ("an expert is missing",)


def damage_file(at: int, value: bytes) -> Callable[[bytearray], object]:
    def change(data: bytearray) -> None:
        data[at : at + len(value)] = value

    return change


def unknown_type(data: bytearray) -> None:
    """Of one matrix: its name, two dimensions, then the type."""
    name = b"blk.0.attn_q.weight"
    at = data.index(name) + len(name) + 4 + 2 * 8
    data[at : at + 4] = struct.pack("<I", 99)


def unknown_tokenizer(data: bytearray) -> None:
    kind = struct.pack("<IQ", 8, 4) + b"gpt2"
    at = data.index(b"tokenizer.ggml.model") + len(b"tokenizer.ggml.model")
    assert data[at : at + len(kind)] == kind
    data[at + len(kind) - 4 : at + len(kind)] = b"what"


GGUF: dict[str, tuple[Callable[[bytearray], object], str]] = {
    "a newer version": (damage_file(VERSION, struct.pack("<I", 4)), "version 4, which is newer"),
    "a truncated file": (lambda data: data.__delitem__(slice(-100, None)), "is truncated"),
    "an unknown type": (unknown_type, "of type 99"),
    "an unknown tokenizer": (unknown_tokenizer, "what"),
}


@pytest.mark.parametrize("fault", core(*FIRST, further=CHECKPOINTS))
def test_a_bad_checkpoint_is_refused(
    fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, layout, damage, named = CHECKPOINTS[fault]
    model = save_random(name, tmp_path / "model", tokenizer=True)
    if layout in FLOAT_LAYOUTS:
        rewrite_floats(model, FLOAT_LAYOUTS[layout])
    elif layout:
        rewrite(model, LAYOUTS[layout])
    damage(model)
    check_refused(model, named, tmp_path / "out", capsys)


@pytest.fixture(scope="module")
def whole(shakespeare_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bundled model as a GGUF file."""
    folder = tmp_path_factory.mktemp("gguf")
    model = Path(shutil.copytree(shakespeare_dir, folder / "model"))
    return write_gguf(model, folder / "m.gguf", gguf.GGMLQuantizationType.Q8_0).read_bytes()


@pytest.mark.parametrize("fault", core("an unknown tokenizer", further=GGUF))
def test_a_bad_gguf_file_is_refused(
    fault: str, whole: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage, named = GGUF[fault]
    data = bytearray(whole)
    damage(data)
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    check_refused(path, named, tmp_path / "out", capsys)
