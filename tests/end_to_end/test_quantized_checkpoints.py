"""Checkpoints in the quantized layouts of other programs, from their files to tokens.

The integers of the artifact are those that were written, bit for bit, and its logits those of
`transformers` on the numbers that the integers stand for.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ingot
from ingot.api import LLM
from ingot.artifact.manifest import AS_STORED
from ingot.compiler.compile import compile_model
from ingot.compiler.explain import explain
from ingot.compiler.options import CompileOptions, Report
from ingot.errors import IngotError, UsageError
from ingot.models.model_dir import ModelDir
from ingot.ops.scaled import Scaled
from tests.end_to_end.integers import names_of, stored_integers
from tests.end_to_end.support import judge, judged_logits
from tests.support.core import core
from tests.support.quantized_checkpoints import LAYOUTS, Known, plain, rewrite
from tests.support.tiny_models import VOCAB_SIZE, save_random

LONGEST = 128
# Relative error of logits: what is left is the rounding of activations to int8.
LIMIT = 0.03
LABELS = {
    "gptq": "int4-b32",
    "gptq-v2": "int4-b32",
    "gptq-8bit": "int8-g32",
    "gptq-2bit": "int4-b32",
    "gptq-channel": "int4-b64 + int4-b32",
    "gptq-ordered": "int4-b32",
    "gptq-ordered-zeros": "int4-b32-zeros",
    "gptq-zeros": "int4-b32-zeros",
    "gptq-zeros-v1": "int4-b32-zeros",
    "gptq-narrow": "int4-b16-zeros",
    "awq": "int4-b32-zeros",
    "pack-quantized": "int4-b32",
    "pack-quantized-zeros": "int4-b32-zeros",
    "pack-quantized-ordered": "int4-b32-zeros",
    "pack-quantized-channel": "int8-g64 + int8-g32",
    "int-quantized": "int8-g64 + int8-g32",
}


@dataclass(frozen=True)
class Compiled:
    """A quantized checkpoint, what was written into it, and what was made of it."""

    layout: str
    model_dir: Path
    known: dict[str, Known]
    report: Report


def compiled_as(layout: str, folder: Path, **options: Any) -> Compiled:
    model_dir = save_random("llama", folder / "model", "bfloat16", tokenizer=True)
    known = rewrite(model_dir, LAYOUTS[layout])
    given = CompileOptions(max_model_len=LONGEST, **options)
    return Compiled(
        layout, model_dir, known, compile_model(ModelDir.open(model_dir), folder / "a.ingot", given)
    )


@pytest.fixture(
    scope="module", params=core(further=("gptq-ordered", "awq", "gptq-narrow"), slow=LAYOUTS)
)
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    return compiled_as(request.param, tmp_path_factory.mktemp(request.param))


def stored(artifact: Path) -> dict[tuple[str, ...], Scaled]:
    """The matrices of an artifact that are in integers, by the parameters that they hold."""
    with LLM(artifact) as llm:
        return {names_of(buffer): matrix for buffer, matrix in stored_integers(llm)}


@pytest.mark.cases(thorough=1)
def test_the_artifact_holds_the_integers_of_the_checkpoint(compiled: Compiled) -> None:
    matrices = stored(compiled.report.artifact)
    assert len(matrices) == 2 * 4  # q, k and v are one, and so are gate and up
    names = [name for sources in matrices for name in sources]
    assert sorted(names) == sorted(compiled.known)
    for sources, value in matrices.items():
        known = [compiled.known[name] for name in sources]
        middle = 1 << (known[0].bits - 1)
        codes = torch.cat([each.codes[:, each.order] for each in known])
        numbers = torch.cat([each.numbers()[:, each.order] for each in known])
        assert torch.equal(value.values.int() + middle, codes.int())
        assert torch.equal(value.dequantize(), numbers)
        if any((each.zeros != middle).any() for each in known):
            each_group = value.scales.shape[1] // known[0].scales.shape[1]
            zeros = torch.cat([each.zeros for each in known]).repeat_interleave(each_group, 1)
            assert value.zeros is not None
            assert torch.equal(value.zeros.int() + middle, zeros.int())


@pytest.mark.cases(thorough=1)
def test_the_summary_says_what_was_kept(compiled: Compiled) -> None:
    from ingot.cli.compile import summary

    report = compiled.report
    assert report.manifest.numerics.quantization == LABELS[compiled.layout] + AS_STORED
    assert sum(int(text.split()[0]) for text in report.kept) == len(compiled.known)
    text = summary(report)
    for label in LABELS[compiled.layout].split(" + "):
        assert f"kept as {label}: " in text
    told = explain(compiled.model_dir)
    assert told.supported and set(report.kept) <= set(told.features)
    default, *others = told.ways
    assert default.default and default.options == ()
    # Headers are all that is read, and they do not tell whether columns have an order of their own.
    orders = 2 * (3 * 4 * 64 + 4 * 96) if "ordered" in compiled.layout else 0
    entries = 128 * 2 * 4 if orders else 1  # of the header of the artifact
    assert 0 <= report.weight_bytes - default.weight_bytes - orders < entries
    assert all("--dequantize" in way.options for way in others)


@pytest.mark.cases(thorough=1)
def test_logits_are_those_of_the_numbers(compiled: Compiled, tmp_path: Path) -> None:
    numbers = Path(shutil.copytree(compiled.model_dir, tmp_path / "numbers"))
    as_numbers(numbers, compiled.known)
    model = judge(numbers)
    with LLM(compiled.report.artifact) as llm:
        for length in (1, 17, 100):
            tokens = np.random.default_rng(length).integers(VOCAB_SIZE, size=length).tolist()
            want = judged_logits(model, tokens)
            got = llm.logits(tokens)
            assert np.linalg.norm(got - want) <= LIMIT * np.linalg.norm(want)
            assert np.array_equal(got, llm.logits(tokens, chunk_tokens=7))


def as_numbers(model_dir: Path, known: dict[str, Known]) -> None:
    """The checkpoint without its quantization: the numbers, under the original names."""
    from safetensors.torch import load_file, save_file

    path, config = model_dir / "model.safetensors", model_dir / "config.json"
    tensors = load_file(path)
    stems = {name.removesuffix("weight") for name in known}
    rest = {n: t for n, t in tensors.items() if not n.startswith(tuple(stems))}
    save_file(rest, path, metadata={"format": "pt"})
    plain(model_dir, known)
    values = json.loads(config.read_text())
    del values["quantization_config"]
    config.write_text(json.dumps(values))


@pytest.mark.parametrize("layout", core("gptq-ordered", further=("gptq",)))
def test_numbers_are_read_on_request(layout: str, tmp_path: Path) -> None:
    made = compiled_as(layout, tmp_path, dequantize=True, dtype="float32")
    assert made.report.manifest.numerics.quantization == "none"
    assert all("dequantized" in text for text in made.report.kept)
    numbers = Path(shutil.copytree(made.model_dir, tmp_path / "numbers"))
    as_numbers(numbers, made.known)
    tokens = list(range(20))
    want = judged_logits(judge(numbers), tokens)
    with LLM(made.report.artifact) as llm:
        assert np.linalg.norm(llm.logits(tokens) - want) <= 1e-4 * np.linalg.norm(want)


@pytest.mark.slow
def test_a_second_rounding_is_stated(tmp_path: Path) -> None:
    made = compiled_as("awq", tmp_path, dequantize=True, quantize="int8", group_size=32)
    assert made.report.manifest.numerics.quantization == "int8-g32"
    assert all("rounded to int8-g32" in text for text in made.report.kept)


@pytest.mark.slow
def test_exceptions_change_what_they_name_alone(tmp_path: Path) -> None:
    made = compiled_as("gptq", tmp_path, keep=("lm_head=int8", "down_proj=none"))
    assert made.report.manifest.numerics.quantization == "int4-b32 + int8-g128" + AS_STORED
    matrices = stored(made.report.artifact)
    names = [name for sources in matrices for name in sources]
    assert "lm_head.weight" in names and not any("down_proj" in name for name in names)
    assert any("dequantized: down_proj" in text for text in made.report.kept)


@pytest.mark.parametrize(
    "options",
    [{"quantize": "int8"}, {"quantize": "int4"}, {"group_size": 32}, {"calibrate": Path("x")}],
)
def test_integers_are_not_rounded_again_unasked(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="quantized already") as caught:
        compiled_as("gptq", tmp_path, **options)
    assert "--dequantize" in caught.value.hint
    assert not list(tmp_path.glob("*.ingot*"))


def test_there_is_nothing_to_dequantize_in_other_checkpoints(tmp_path: Path) -> None:
    model_dir = save_random("llama", tmp_path / "model", tokenizer=True)
    with pytest.raises(UsageError, match="not quantized"):
        ingot.compile(model_dir, tmp_path / "a.ingot", dequantize=True)


def test_a_gpu_refuses_blocks_that_it_does_not_multiply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = LAYOUTS["gptq-8bit"].config | {"group_size": 8}
    monkeypatch.setitem(LAYOUTS, "narrow", replace(LAYOUTS["gptq-8bit"], config=config, group=8))
    with pytest.raises(IngotError, match="int8-b8") as caught:
        compiled_as("narrow", tmp_path, targets=("cuda:sm_90",))
    assert "--dequantize" in caught.value.hint
