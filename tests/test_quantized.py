"""Quantized artifacts of the bundled model, from the command line's options to the tokens.

Every compile here replays its golden prompts in one prefill, in chunks and token by token; the
compile fails if their bits differ or leave the tolerance.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ingot
from golden.update import MODEL
from ingot.api import LLM
from ingot.artifact.reader import Artifact
from ingot.compiled import cache_key
from ingot.compiler.options import CompileOptions
from ingot.errors import UsageError
from ingot.models.model_dir import ModelDir
from tests.support.core import core

VARIANTS = {
    "int8": {"quantize": "int8", "group_size": "channel"},
    "int4": {
        "quantize": "int4",
        "group_size": 32,
        "keep": ("layers.0.*=int8", "layers.5.mlp.*=bf16"),
    },
    "int4 head": {"quantize": "int4", "group_size": 128, "keep": ("lm_head=int4",)},
    "int16 rows": {"quantize": "int8", "group_size": 32, "activations": "int16"},
}
LABELS = {
    "int8": "int8-channel",
    "int4": "int4-g32-zeros + int8-g32",
    "int4 head": "int4-g128-zeros",
    "int16 rows": "int8-g32",
}

FORMATS = {
    "int8": {"int8-b256", "int8-b768"},
    "int4": {"int4-g32-b128-zeros", "int8-b32", "bfloat16"},
    "int4 head": {"int4-b128-zeros"},
    "int16 rows": {"int8-b32"},
}


@pytest.fixture(scope="module", params=core("int4", further=VARIANTS))
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("quantized") / "model.ingot"
    report = ingot.compile(MODEL, path, max_model_len=128, **VARIANTS[request.param])
    return request.param, report


@pytest.mark.cases(thorough=1)
def test_the_manifest_and_the_plan_say_how(compiled) -> None:
    name, report = compiled
    assert report.manifest.numerics.quantization == LABELS[name]
    with LLM(report.artifact) as llm:
        stored = [b for b in llm.artifact.plan.of_kind("weight") if b.format.is_scaled]
    kept = 3 if name == "int4" else 0
    assert sum(len(weight.sources) for weight in stored) == 6 * 7 + 1 - kept
    assert report.golden_error is not None and report.golden_error < 0.25


@pytest.mark.cases(thorough=1)
def test_the_file_holds_what_the_plan_says(compiled) -> None:
    name, report = compiled
    parameters = report.manifest.model.num_parameters
    share = {"int8": 1.05, "int4": 0.9, "int4 head": 0.58, "int16 rows": 1.1}[name]
    assert report.weight_bytes < share * parameters
    with LLM(report.artifact) as llm:
        formats = {str(b.format) for b in llm.artifact.plan.of_kind("weight")}
    assert formats - {"float32"} == FORMATS[name]


@pytest.mark.cases(thorough=1)
def test_sequences_are_the_same_alone_and_in_company(compiled) -> None:
    _, report = compiled
    prompts = [[5], [(i * 37) % 2048 for i in range(40)], [(i * 91) % 2048 for i in range(17)]]
    params = ingot.SamplingParams(temperature=0, max_tokens=12, logprobs=1, ignore_eos=True)
    with LLM(report.artifact) as llm:
        together = llm.generate(prompts, params)
        alone = [llm.generate([prompt], params)[0] for prompt in prompts]
        logits = [llm.logits(prompts[1], chunk_tokens=n) for n in (None, 9)]
    assert [o.outputs[0] for o in together] == [o.outputs[0] for o in alone]
    assert np.array_equal(*logits)


@pytest.mark.thorough
def test_what_was_chosen_by_measurement_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several formats, and rows of 8 and of 16 bits in one model, none of which is free."""
    monkeypatch.setattr("ingot.compiler.quantization.budget.FREE_ROWS", 0.0)
    report = ingot.compile(
        MODEL, tmp_path / "a.ingot", max_model_len=128, quantize="auto", bits=6.0
    )
    assert report.golden_error is not None and report.golden_error < 0.25
    assert len({matrix.stored for matrix in report.matrices}) > 2
    prompts = [[5], [(i * 37) % 2048 for i in range(40)], [(i * 91) % 2048 for i in range(17)]]
    params = ingot.SamplingParams(temperature=0, max_tokens=12, logprobs=1, ignore_eos=True)
    with LLM(report.artifact) as llm:
        read = {b.dtype for b in llm.artifact.plan.buffers if b.name.endswith("_b128")}
        together = llm.generate(prompts, params)
        alone = [llm.generate([prompt], params)[0] for prompt in prompts]
    assert read == {"int8", "int16"}
    assert [o.outputs[0] for o in together] == [o.outputs[0] for o in alone]


@pytest.mark.thorough
def test_what_is_refused_leaves_nothing(tmp_path: Path, tmp_path_factory) -> None:
    out = tmp_path / "x.ingot"
    text = tmp_path_factory.mktemp("text") / "text.txt"
    text.write_text("Shall I compare thee to a summer's day? " * 500)
    for options in (
        {"quantize": "int4", "keep": ("lm_haed=bf16",)},
        {"quantize": "int4", "group_size": "channel"},
        {"quantize": "int4", "calibrate": tmp_path / "none.txt"},
        {"quantize": "int4", "keep": ("q_proj=int8",)},
        {"quantize": "int8", "keep": ("*=none",)},
        {"quantize": "int4", "keep": ("*_proj=none",), "calibrate": text},
        {"keep": ("lm_head=bf16",)},
    ):
        with pytest.raises(UsageError):
            ingot.compile(MODEL, out, **options)
    assert list(tmp_path.iterdir()) == []


def test_the_cache_knows_the_calibration_text(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("a")
    options = CompileOptions(quantize="int4", calibrate=text)
    before = cache_key(ModelDir.open(MODEL), options)
    text.write_text("ab")
    assert cache_key(ModelDir.open(MODEL), options) != before


@pytest.mark.cases(thorough=1)
def test_equal_options_give_equal_files(tmp_path: Path, compiled) -> None:
    name, report = compiled
    if name != "int4":
        return
    again = ingot.compile(MODEL, tmp_path / "again.ingot", max_model_len=128, **VARIANTS[name])
    files = [Artifact.open(r.artifact).manifest.files for r in (report, again)]
    weights = [n for n in files[0] if n.startswith("weights/")]
    assert [files[0][n] for n in weights] == [files[1][n] for n in weights]
