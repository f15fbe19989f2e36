"""What lies in an artifact, against the model directory, the options and the files themselves."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from safetensors.torch import load_file
from transformers import AutoTokenizer

from ingot.artifact.writer import ArtifactWriter, refuse_missing
from ingot.compiler import compile as compiler
from ingot.compiler.compile import compile_model
from ingot.compiler.golden_text import TEXT
from ingot.compiler.options import CompileOptions, Report, silent
from ingot.errors import (
    CheckpointError,
    IngotError,
    ResourceError,
    ToolchainError,
    UsageError,
    VerificationError,
)
from ingot.models.model_dir import ModelDir
from ingot.targets.compilers import Builder
from ingot.targets.cpu import toolchain
from tests.support.tiny_models import save_random

V3 = ("cpu:portable", "cpu:x86-64-v3")
BUILT = b"no code"


@dataclass(frozen=True)
class Made:
    """A model directory and the artifact that was made of it."""

    model: Path
    report: Report

    @property
    def manifest(self) -> dict[str, Any]:
        return json.loads((self.report.artifact / "manifest.json").read_text())

    @property
    def golden(self) -> dict[str, Any]:
        return json.loads((self.report.artifact / "golden" / "golden.json").read_text())


def no_compiler(patch: pytest.MonkeyPatch) -> None:
    def build(source_dir: Path, out: Path, *_: object, **__: object) -> None:
        assert all(path.stat().st_size for path in source_dir.glob("*.cpp"))
        out.write_bytes(BUILT)

    patch.setattr(toolchain, "build", build)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    return save_random("gemma2", folder, "bfloat16", tokenizer=True)


@pytest.fixture(scope="module")
def made(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """For two targets, in int4 but for one matrix, with a dump."""
    folder = tmp_path_factory.mktemp("made")
    options = CompileOptions(
        targets=V3,
        dtype="float32",
        quantize="int4",
        group_size=32,
        keep="*.layers.1.mlp.down_proj=none",
        kv_dtype="int8",
        max_model_len=300,
        max_num_seqs=3,
        page_size=32,
        disable_passes=("merge_linears",),
        dump_dir=folder / "dump",
    )
    with pytest.MonkeyPatch.context() as patch:
        no_compiler(patch)
        report = compile_model(
            ModelDir.open(model),
            folder / "a.ingot",
            options,
            check=lambda path: 0.0,
            conversation=lambda path: (),
        )
    return Made(model, report)


def test_the_manifest_says_of_the_model_what_its_directory_says(made: Made) -> None:
    config = json.loads((made.model / "config.json").read_text())
    tensors = load_file(made.model / "model.safetensors").values()
    found = made.manifest["model"]
    per_token = 2 * config["num_hidden_layers"] * config["num_key_value_heads"]
    assert found == {
        "name": "tiny",
        "architecture": "Gemma2ForCausalLM",
        "vocab_size": config["vocab_size"],
        "num_layers": config["num_hidden_layers"],
        "num_parameters": sum(tensor.numel() for tensor in tensors),
        "bos_token_ids": [config["bos_token_id"]],
        "eos_token_ids": [config["eos_token_id"]],
        "kv_bytes_per_token": per_token * (config["head_dim"] + 4),  # int8 and a float32 scale
    }


def test_the_manifest_says_what_was_asked_for(made: Made) -> None:
    manifest = made.manifest
    assert manifest["limits"] == {
        "max_model_len": 300,
        "max_num_seqs": 3,
        "max_num_batched_tokens": 512,
        "max_logit_rows": 3,
        "page_size": 32,
    }
    numerics = manifest["numerics"]
    assert numerics["dtype"] == "float32"
    ((name, allowed),) = made.golden["tolerances"].items()
    assert (name, numerics["tolerance"]) == ("int4-g32-zeros+int8-cache", allowed["mean"])
    assert allowed["mean"] == pytest.approx(1.5 * allowed["noise"], rel=1e-2)
    assert allowed["mean"] < allowed["largest"]
    quality = numerics["quality"]
    assert 0 < quality["kl"] <= quality["kl_p99"] <= quality["kl_largest"]
    assert quality["positions"] >= 512
    assert numerics["quantization"] == "int4-g32-zeros + int8-g32"  # tables take eight bits
    assert [entry["name"] for entry in manifest["targets"]] == list(V3)
    portable, wide = manifest["targets"]
    assert portable["requires"] == ["x86_64"]
    assert {"avx2", "fma", "x86_64"} <= set(wide["requires"])
    assert wide["requires"] == sorted(wide["requires"])
    assert portable["layout"] == wide["layout"] and wide["layout"].endswith(
        "float32-int4-g32-zeros"
    )
    assert "merge_linears" not in [entry["name"] for entry in manifest["ledger"]]
    assert made.report.dtype_reason == "float32, as asked"
    assert made.report.golden_error == 0.0


def test_every_file_is_listed_with_its_size_and_hash(made: Made) -> None:
    root = made.report.artifact
    files = {str(p.relative_to(root)): p for p in root.rglob("*") if p.is_file()}
    del files["manifest.json"]
    listed = made.manifest["files"]
    assert listed.keys() == files.keys()
    for name, path in files.items():
        assert listed[name]["size"] == path.stat().st_size
        assert listed[name]["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert made.report.bytes_total == sum(path.stat().st_size for path in files.values())
    weights = [path for name, path in files.items() if name.startswith("weights/")]
    assert len(weights) == 1 and made.report.weight_bytes == weights[0].stat().st_size


def test_every_target_has_its_plan_its_sources_and_its_kernels(made: Made) -> None:
    for entry in made.manifest["targets"]:
        folder = f"targets/{entry['name'].replace(':', '-')}"
        step = entry["programs"]["step"]
        assert step["plan"] == f"{folder}/plan.json"
        kernels = made.report.artifact / step["kernels"]
        assert kernels.parent.name == Path(folder).name and kernels.read_bytes() == BUILT
        assert (kernels.parent / "source" / "step.cpp").is_file()


def test_what_was_compiled_may_be_replaced(made: Made) -> None:
    """All that a compile writes is known to belong to an artifact."""
    refuse_missing(made.report.artifact)
    stranger = made.report.artifact / "notes.txt"
    stranger.touch()
    with pytest.raises(UsageError, match=r"holds notes\.txt, which is no part"):
        refuse_missing(made.report.artifact)
    stranger.unlink()


def test_the_tokenizer_is_that_of_the_model(made: Made) -> None:
    copied = made.report.artifact / "tokenizer" / "tokenizer.json"
    assert copied.read_bytes() == (made.model / "tokenizer.json").read_bytes()


def test_golden_prompts_begin_with_the_text_and_cross_the_window(made: Made) -> None:
    ids = AutoTokenizer.from_pretrained(made.model).encode(TEXT, add_special_tokens=False)
    window = json.loads((made.model / "config.json").read_text())["sliding_window"]
    prompts = [[each["token"] for each in p["positions"]] for p in made.golden["prompts"]]
    assert window + 33 <= 67  # which the longest crosses
    assert [len(prompt) for prompt in prompts] == [2, 5, 32, 67]
    assert all(p == (ids * 9)[: len(p)] for p in prompts)


def test_a_dump_has_the_graph_after_passes(made: Made) -> None:
    dumped = os.listdir(made.report.artifact.parent / "dump")
    assert "00_export.txt" in dumped and "summary.txt" in dumped


def test_an_artifact_that_fails_its_check_does_not_appear(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_compiler(monkeypatch)
    seen: list[bool] = []

    def check(folder: Path) -> float:
        seen.append((folder / "manifest.json").is_file())
        raise VerificationError("golden prompts differ")

    with pytest.raises(VerificationError):
        compile_model(
            ModelDir.open(model), tmp_path / "a.ingot", CompileOptions(targets=V3[0]), check=check
        )
    assert seen == [True] and list(tmp_path.iterdir()) == []


def never(*args: object, **kwargs: object) -> None:
    raise AssertionError("too late")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"disable_passes": "fuse_rope"}, UsageError, "fuse_rope"),
        ({"disable_passes": "no_such_rule"}, UsageError, "does not exist"),
        ({"calibrate": "absent.txt", "quantize": "int8"}, UsageError, "absent.txt"),
        ({"max_model_len": 513}, UsageError, "--max-model-len"),
        ({}, ToolchainError, "no compiler"),
    ],
)
def test_what_can_be_refused_early_is_refused_before_the_export(
    options: dict[str, str],
    error: type[IngotError],
    message: str,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def build(*given: object, **_: object) -> None:
        raise ToolchainError("no compiler")

    monkeypatch.setattr(toolchain, "build", build)
    monkeypatch.setattr(compiler, "front_of", never)
    asked = CompileOptions(targets=V3[0], **options)
    with pytest.raises(error, match=message):
        compile_model(ModelDir.open(model), tmp_path / "a.ingot", asked, progress=silent)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_found_before_weights_are_packed(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_compiler(monkeypatch)
    full = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    monkeypatch.setattr(compiler, "write_parts", never)
    with pytest.raises(ResourceError, match=str(tmp_path)):
        compile_model(ModelDir.open(model), tmp_path / "a.ingot", CompileOptions(targets=V3[0]))
    assert list(tmp_path.iterdir()) == []


def test_who_waits_for_another_compile_is_told(model: Path, tmp_path: Path) -> None:
    out, told, held = tmp_path / "a.ingot", Event(), Event()

    def other() -> None:
        with ArtifactWriter(out):
            held.set()
            assert told.wait(60)

    def progress(stage: str, detail: str, fraction: float | None) -> None:
        if stage == "wait":
            assert str(out) in detail
            told.set()

    thread = Thread(target=other)
    thread.start()
    assert held.wait(60)
    with pytest.MonkeyPatch.context() as patch:
        no_compiler(patch)
        compile_model(ModelDir.open(model), out, CompileOptions(), progress=progress)
    thread.join()
    assert told.is_set() and out.exists()


def test_a_build_that_fails_ends_the_compile_at_once(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds: list[Future[Any]] = []

    class Told(Builder):
        def submit(self, *job: Any) -> Future[Any]:  # type: ignore[override]
            builds.append(super().submit(*job))
            return builds[-1]

    def failing(*_: object) -> None:
        raise ToolchainError("no such instruction")

    monkeypatch.setattr(compiler, "Builder", Told)
    monkeypatch.setattr(compiler, "add_kernels", failing)
    monkeypatch.setattr(compiler, "add_weights", lambda *_: wait(builds))
    monkeypatch.setattr(compiler, "add_golden", reading_for_ever)
    monkeypatch.setattr(compiler, "measured_quality", pytest.fail)
    with pytest.raises(ToolchainError, match="no such instruction"):
        compile_model(ModelDir.open(model), tmp_path / "a.ingot", CompileOptions())
    assert list(tmp_path.iterdir()) == []


def reading_for_ever(*given: Any) -> None:
    *_, on_read = given
    while True:
        on_read("a")


@pytest.mark.parametrize("part", ["add_weights", "add_golden"])
def test_what_fails_beside_the_other_is_said_by_its_type_and_leaves_nothing(
    part: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise CheckpointError("not finite")

    no_compiler(monkeypatch)
    monkeypatch.setattr(compiler, "add_golden", reading_for_ever)
    monkeypatch.setattr(compiler, part, failing)
    with pytest.raises(CheckpointError, match="not finite"):
        compile_model(ModelDir.open(model), tmp_path / "a.ingot", CompileOptions(targets=V3[0]))
    assert list(tmp_path.iterdir()) == []
