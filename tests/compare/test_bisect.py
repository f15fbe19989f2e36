"""Planted faults are named: in the packed weights, in what the passes did, and in the kernels."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import pytest
import torch

from ingot.cli.main import main
from ingot.compare.alone import errors_against, expected
from ingot.compare.bisect import Finding, TracedFinding
from ingot.compare.bisect_sides import bisect
from ingot.compare.cpu_step import CpuStep
from ingot.compare.kernel_check import KernelError
from ingot.compare.reproducer import reproduce, save
from ingot.compare.sides import open_side
from ingot.compiler.compile import compile_model
from ingot.compiler.options import CompileOptions
from ingot.errors import ResourceError, UsageError
from ingot.models.blocks import rotary
from ingot.models.model_dir import ModelDir
from tests.compare.planted import (
    LAYER,
    PROMPTS,
    Bytes,
    bisected,
    faulty_kernels,
    faulty_pass,
    first,
    gate_and_up_swapped,
    window_off_by_one,
    with_weight,
    wrong_epsilon,
)
from tests.support.made_once import made_once
from tests.support.tiny_models import save_random

FORMATS: dict[str, dict[str, str]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"dtype": "bfloat16", "quantize": "int8", "group_size": "32", "kv_dtype": "int8"},
    "int4": {"dtype": "float32", "quantize": "int4", "activations": "int16"},
}

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def model() -> Path:
    """A model with windows, rotations, gates and norms."""
    place = made_once("bisected", lambda p: save_random("mistral", p / "model", tokenizer=True))
    return place / "model"


def compiled(model: Path, out: Path, **options: str) -> Path:
    made = CompileOptions(targets=("cpu:portable",), max_model_len=64, **options)  # type: ignore[arg-type]
    compile_model(ModelDir.open(model), out, made)
    return out


@pytest.fixture(scope="module")
def whole(model: Path) -> Callable[[str], Path]:
    """Artifacts without a fault, by their number format."""

    def artifact(name: str) -> Path:
        place = made_once(
            f"bisected-{name}", lambda p: compiled(model, p / "a.ingot", **FORMATS[name])
        )
        return place / "a.ingot"

    return artifact


@pytest.mark.cases(thorough=1)
@pytest.mark.parametrize("name", FORMATS)
def test_an_artifact_without_a_fault_gives_no_finding(
    name: str, whole: Callable[[str], Path], model: Path
) -> None:
    """The control: every kernel, every weight and every instruction, in both steps."""
    found = bisected(whole(name), model)
    assert [each.finding for each in found.found] == []
    assert found.notes == []
    assert {"model.layers.0", "model.layers.1"} <= found.layers.keys()
    assert found.layers[LAYER].relative < {"float32": 1e-5}.get(name, 0.5)


def flip(data: Bytes) -> None:
    data[len(data) // 2 : len(data) // 2 + 64] ^= 0x55


@pytest.mark.cases(thorough=1)
@pytest.mark.parametrize("name", FORMATS)
def test_a_flipped_block_of_a_weight(
    name: str, whole: Callable[[str], Path], model: Path, tmp_path: Path
) -> None:
    weight = f"{LAYER}.mlp.down_proj.weight"
    damaged = with_weight(whole(name), tmp_path / "a.ingot", weight, flip)
    found = first(damaged, model)
    assert (found.where, found.op, found.origin) == ("weights", "linear", f"{LAYER}.mlp.down_proj")
    assert found.difference.output.startswith(weight)
    assert f"of {weight}" in found.note and 0 < found.difference.num_wrong <= 512


@pytest.mark.slow
def test_a_wrong_scale_in_one_group_of_int4(
    whole: Callable[[str], Path], model: Path, tmp_path: Path
) -> None:
    """The multipliers of a row follow the scales of its panel: 64 bytes of float16."""
    weight = f"{LAYER}.self_attn.o_proj.weight"

    def spoil(data: Bytes) -> None:
        data[64 + 2 * 5] ^= 0x03  # of row 5, four groups of 32 to a block of 128

    damaged = with_weight(whole("int4"), tmp_path / "a.ingot", weight, spoil)
    found = first(damaged, model)
    assert (found.where, found.origin) == ("weights", f"{LAYER}.self_attn.o_proj")
    assert found.difference.output == f"{weight}.multipliers"
    assert found.difference.num_wrong == 1
    columns = re.match(rf"wrong are rows 5, columns (\d+) to (\d+) of {weight}$", found.note)
    assert columns and int(columns[2]) < 32  # those that are not zero


PASSES = {
    "eps": ("fuse_rms_norm", wrong_epsilon, f"{LAYER}.post_attention_layernorm", "rms_norm"),
    "window": (
        "rewrite_attention", window_off_by_one, "model.layers.0.self_attn", "paged_attention"
    ),
    "gate": ("fuse_gates", gate_and_up_swapped, "model.layers.0.mlp", "gate"),
}  # fmt: skip


@pytest.mark.cases(thorough=1)
@pytest.mark.parametrize("stays", [False, True], ids=["of another ingot", "of this ingot"])
@pytest.mark.parametrize("name", PASSES)
def test_a_faulty_pass(name: str, stays: bool, model: Path, tmp_path: Path) -> None:
    """Whether it has the fault when the artifact is looked at, or is repaired by then."""
    blamed, spoil, origin, op = PASSES[name]
    out = tmp_path / "a.ingot"
    fault: Callable[[], AbstractContextManager[None]] = partial(faulty_pass, blamed, spoil)
    with fault():
        compiled(model, out, dtype="bfloat16")
    with fault() if stays else nullcontext():
        found = first(out, model)
    assert (found.where, found.origin, found.op) == ("plan", origin, op)
    assert found.made_by.startswith(blamed)
    assert ("make another instruction" in found.note) is not stays


def test_a_dropped_section_of_the_rotation(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its frequencies are zeros: these dimensions are not turned."""
    whole_frequencies = rotary.inverse_frequencies

    def dropped(*args: object, **options: object) -> torch.Tensor:
        found = whole_frequencies(*args, **options).clone()  # type: ignore[arg-type]
        found[2:5] = 0
        return found

    with monkeypatch.context() as patch:
        patch.setattr(rotary, "inverse_frequencies", dropped)
        compiled(model, tmp_path / "a.ingot", dtype="bfloat16")
    found = first(tmp_path / "a.ingot", model)
    assert (found.where, found.origin, found.op) == ("weights", "model.rotary_emb", "rope_table")
    assert "rows 2 to 4" in found.note and "inv_freq" in found.note


KERNELS = {
    "tail": (
        "norm.h",
        "store(out + c, load(x + c, part) * scale * w, part);\n",
        "if (c + lanes < Columns) store(out + c, load(x + c, part) * scale * w, part);\n",
        "model.layers.0.input_layernorm",
        "rms_norm",
        "rms_norm",
    ),
    "slot": (
        "cache.h",
        "cache.write_key(slots[row], h, head",
        "cache.write_key(slots[row] ^ 1, h, head",  # stays within the cache
        "model.layers.0.self_attn",
        "rope+rope+kv_write",
        "k_cache_0",
    ),
}


@pytest.fixture
def faulty(tmp_path: Path, model: Path) -> Callable[[str], Path]:
    """An artifact whose kernels have that fault."""

    def artifact(name: str) -> Path:
        header, old, new, *_ = KERNELS[name]
        with faulty_kernels(tmp_path / "kernels", header, old, new):
            return compiled(model, tmp_path / "a.ingot", dtype="bfloat16")

    return artifact


@pytest.mark.cases(thorough=1)
@pytest.mark.parametrize("name", KERNELS)
def test_a_faulty_kernel_and_its_reproducer(
    name: str, faulty: Callable[[str], Path], model: Path, tmp_path: Path
) -> None:
    """One that skips the last columns, and one that writes keys a slot off."""
    *_, origin, op, output = KERNELS[name]
    artifact, folder = faulty(name), tmp_path / "saved"
    words = [
        "compare",
        str(artifact),
        str(model),
        "--tokens",
        "0",
        "--bisect",
        "--save",
        str(folder),
    ]
    assert main(words) == 4
    found = json.loads((folder / "finding.json").read_text())["finding"]
    assert (found["where"], found["origin"], found["op"]) == ("kernel", origin, op)
    assert found["difference"]["output"].startswith(output)
    assert ("the step does not write" in found["note"]) == (name == "slot")
    assert found["made_by"].split(", ")[0] in ("fuse_rms_norm", "group_heads")
    shutil.rmtree(artifact)  # the folder stands alone
    done = subprocess.run(
        [sys.executable, str(folder / "reproduce.py")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert f"{found['difference']['num_wrong']} of {found['difference']['count']}" in done.stdout


def test_a_reproducer_of_a_kernel_that_is_right_says_so(
    whole: Callable[[str], Path], model: Path, tmp_path: Path
) -> None:
    """The control of the script: what it runs is the kernel, not what was found."""
    kernels = bisected(whole("int4"), model).kernels
    for number, seen in enumerate(kernels.seen["decode"]):
        wanted = expected(seen, kernels.steps.parts["decode"], kernels.stored.read)
        difference, *_ = errors_against(seen, wanted)
        finding = Finding(
            where="kernel", number=number, kernel=seen.work.kernel, origin=seen.work.origin,
            op="", made_by="", difference=difference, step="decode",
        )  # fmt: skip
        error = KernelError(seen, "decode", difference, wanted)
        save(tmp_path / str(number), TracedFinding(finding, error), kernels)
        assert reproduce(tmp_path / str(number)) == 0


def test_two_artifacts_are_held_against_each_other(
    whole: Callable[[str], Path], model: Path, tmp_path: Path
) -> None:
    same = bisected(whole("bfloat16"), whole("int4"))
    assert same.found == [] and "without a model directory" in same.notes[-1]
    assert same.apart == []
    with faulty_pass("fuse_gates", gate_and_up_swapped):
        compiled(model, tmp_path / "a.ingot", dtype="bfloat16")
    found = first(tmp_path / "a.ingot", whole("float32"))
    assert (found.where, found.origin, found.op) == ("plan", "model.layers.0.mlp", "gate")


def halve(raw: Bytes) -> None:
    """Numbers of bfloat16; in packed rows, zeros may stand between them."""
    numbers = raw.view("<u2")
    numbers[numbers & 0x7F80 > 0] -= 1 << 7  # one from each exponent


def test_a_matrix_that_was_scaled_is_named_before_formats_are(
    whole: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"{LAYER}.mlp.down_proj.weight"
    with_weight(whole("bfloat16"), tmp_path / "a.ingot", name, halve)
    (apart,) = bisected(tmp_path / "a.ingot", whole("int4")).apart
    assert apart.name == name and apart.factor == pytest.approx(0.5, abs=0.02)
    arguments = ["compare", str(tmp_path / "a.ingot"), str(whole("int4")), "--bisect"]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert shown.index(name) < shown.index("What differs is these numbers")
    assert "what number formats cost" not in shown.partition("Bisected")[2].partition("Bisected")[0]


def test_what_fails_between_two_kernels_ends_the_step(
    whole: Callable[[str], Path], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of Python's within the call of the kernels is not lost."""

    def fail(step: CpuStep, name: str) -> None:
        raise ResourceError(f"no room for {name}")

    monkeypatch.setattr(CpuStep, "value", fail)
    with pytest.raises(ResourceError, match="no room for embedding"):
        bisected(whole("float32"), model)


@pytest.mark.slow
def test_sides_that_have_no_values_of_layers(whole: Callable[[str], Path], model: Path) -> None:
    found = bisected(whole("float32"), f"hf:{model}")
    assert found.found == [] and "gives logits alone" in found.notes[0]
    one, other = (open_side(str(model), max_model_len=64) for _ in range(2))
    with pytest.raises(UsageError, match="only artifacts have a plan"):
        bisect(one, other, PROMPTS)
