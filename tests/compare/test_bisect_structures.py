"""Bisection on every structure: no false alarm, and faults in the kernels that users run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ingot.compare.reproducer import reproduce, save
from ingot.compiler.compile import compile_model
from ingot.compiler.options import CompileOptions
from ingot.models.model_dir import ModelDir
from tests.compare.planted import bisected, faulty_kernels
from tests.support.core import core
from tests.support.quantized_checkpoints import LAYOUTS, rewrite
from tests.support.tiny_models import save_random

BFLOAT16: dict[str, Any] = {"dtype": "bfloat16"}
FLOAT32: dict[str, Any] = {"dtype": "float32"}
INT4 = {**BFLOAT16, "quantize": "int4", "group_size": "32"}
INT8 = {**BFLOAT16, "quantize": "int8", "group_size": "32", "kv_dtype": "int8"}
TEXT = "The quick brown fox jumps over the lazy dog. " * 60
# The model, and the options of the compile. A layout of another program, and a text to calibrate
# by, stand for the integers that these choose.
STRUCTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "experts": ("mixtral", BFLOAT16),
    "experts in float32": ("mixtral", FLOAT32),
    "experts in int4": ("qwen3moe_unnormalised", {**INT4, "kv_dtype": "int8"}),
    "experts, sinks and biases": ("gptoss", BFLOAT16),
    "latent attention": ("deepseek_v2", FLOAT32),
    "latent attention and experts": ("deepseek_v3_experts", BFLOAT16),
    "soft caps and four norms": ("gemma2", BFLOAT16),
    "soft caps in int4": ("gemma2", INT4),
    "two rotations in int8": ("gemma3_ropes", INT8),
    "learned positions": ("gpt2", BFLOAT16),
    "learned positions in float32": ("gpt2", FLOAT32),
    "parts side by side": ("cohere_qk_norm", BFLOAT16),
    "one matrix for three": ("phi3", BFLOAT16),
    "a temperature": ("mistral3", BFLOAT16),
    "norms after each part": ("olmo3", BFLOAT16),
    "neighbours of a part": ("gpt_neox", BFLOAT16),
    "multipliers": ("granite", BFLOAT16),
    "gptq-ordered": ("llama", BFLOAT16),
    "awq": ("llama", BFLOAT16),
    "calibrated": ("llama", INT4),
}
FIRST = ("experts", "latent attention and experts", "soft caps in int4", "learned positions")

pytestmark = pytest.mark.thorough


def compiled(name: str, folder: Path) -> tuple[Path, Path]:
    """The artifact of a structure for this host, and its model directory."""
    case, options = STRUCTURES[name]
    model = save_random(case, folder / "model", options["dtype"], tokenizer=True)
    if name in LAYOUTS:
        rewrite(model, LAYOUTS[name])
    if name == "calibrated":
        (folder / "text.txt").write_text(TEXT)
        options = {**options, "calibrate": folder / "text.txt"}
    compile_model(
        ModelDir.open(model), folder / "a.ingot", CompileOptions(max_model_len=64, **options)
    )
    return folder / "a.ingot", model


@pytest.mark.slow
@pytest.mark.parametrize("name", core(*FIRST, further=(), slow=STRUCTURES))
def test_a_structure_without_a_fault_gives_no_finding(name: str, tmp_path: Path) -> None:
    """The control, on vector kernels: every kernel, weight and instruction, in both steps."""
    artifact, model = compiled(name, tmp_path)
    found = bisected(artifact, model)
    assert [each.finding for each in found.found] == []
    assert found.notes == []
    assert len(found.layers) >= 2


# The model, its options, the header, what it says, what it says instead, an op of the kernel, and
# how the output begins in which the fault shows.
KERNELS: dict[str, tuple[str, dict[str, Any], str, str, str, str]] = {
    "a norm without the last columns": (
        "mistral",
        BFLOAT16,
        "norm.h",
        "store(out + c, load(x + c, part) * scale * w, part);\n",
        "if (c + lanes < Columns) store(out + c, load(x + c, part) * scale * w, part);\n",
        "rms_norm",
    ),
    "a rotation without the last pair": (
        "mistral",
        FLOAT32,
        "rope.h",
        "for_columns<Half>([&](int i, auto part) {\n    const vf cosine",
        "for_columns<Half - 1>([&](int i, auto part) {\n    const vf cosine",
        "rope",
    ),
    "a product of integers without the last columns": (
        "mistral",
        INT4,
        "quantized_tile.h",
        "    if (Depth == 0 || k + 4 <= Depth) return splat_quad(from);\n",
        "    static const std::int8_t none[4] = {};\n    if (k + 4 == Values) from = none;\n"
        "    if (Depth == 0 || k + 4 <= Depth) return splat_quad(from);\n",
        "linear",
    ),
    "an expert with gate and up swapped": (
        "mixtral",
        FLOAT32,
        "experts.h",
        "return Activation::of(gate) * up; }",
        "return Activation::of(up) * gate; }",
        "expert_gate",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_a_faulty_vector_kernel_and_its_reproducer(name: str, tmp_path: Path) -> None:
    case, options, header, old, new, op = KERNELS[name]
    model = save_random(case, tmp_path / "model", options["dtype"], tokenizer=True)
    with faulty_kernels(tmp_path / "kernels", header, old, new):
        made = CompileOptions(max_model_len=64, **options)
        compile_model(ModelDir.open(model), tmp_path / "a.ingot", made)
    bisection = bisected(tmp_path / "a.ingot", model)
    found = bisection.found[0]
    assert found.finding.where == "kernel" and op in found.finding.op.split("+")
    assert found.finding.number == min(
        n for n, work in enumerate(bisection.kernels.work)
        if op in {member.op for member in work.members}
    )  # fmt: skip
    save(tmp_path / "saved", found, bisection.kernels)
    assert reproduce(tmp_path / "saved") == 1
