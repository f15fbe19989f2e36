"""Targets that are added to an artifact: as if it had been compiled for all of them at once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ingot.compiler.add as adding
from ingot.artifact.golden import Golden, GoldenModel, GoldenPosition, GoldenPrompt
from ingot.artifact.reader import Artifact
from ingot.compiler.add import add_targets
from ingot.compiler.golden import outputs_agree
from ingot.compiler.options import CompileOptions
from ingot.errors import ArtifactError, IngotError, ToolchainError, UsageError
from ingot.models.model_dir import ModelDir
from tests.support.tiny_models import save_random
from tests.targets.cuda.simulation import compile_sketch, sketching

pytestmark = pytest.mark.thorough

CPU, GPU, NEWER = "cpu:portable", "cuda:sm_90", "cuda:sm_100"
SMALL: dict[str, Any] = {
    "dtype": "float32", "max_model_len": 64, "max_num_seqs": 4, "max_num_batched_tokens": 32,
}  # fmt: skip


def add(model_dir: Path, out: Path, *targets: str, **options: Any) -> None:
    with sketching():
        add_targets(
            ModelDir.open(model_dir), out, CompileOptions(targets=targets, **SMALL | options)
        )


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random("llama", tmp_path_factory.mktemp("model") / "model", tokenizer=True)


@pytest.fixture(scope="module")
def first(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact for the CPU; to change it, copy it."""
    return compile_sketch(model_dir, tmp_path_factory.mktemp("cpu") / "a.ingot", (CPU,), **SMALL)


@pytest.fixture
def artifact(first: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(first, tmp_path / "a.ingot"))


def test_the_bytes_are_those_of_a_compile_for_all_targets(
    model_dir: Path, artifact: Path, tmp_path: Path
) -> None:
    """Of targets with weights of their own, and of one that shares them."""
    before = {name: (artifact / name).stat().st_ino for name in bytes_of(artifact)}
    add(model_dir, artifact, GPU)
    kept = [name for name in before if (artifact / name).stat().st_ino == before[name]]
    assert any(name.startswith("weights/") for name in kept)
    assert {name for name in before if name.startswith("targets/")} <= set(kept)
    add(model_dir, artifact, NEWER)
    whole = compile_sketch(model_dir, tmp_path / "b.ingot", (CPU, GPU, NEWER), **SMALL)
    assert bytes_of(artifact) == bytes_of(whole)
    Artifact.open(artifact, "full", flags=frozenset())
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".a")] == []


@pytest.mark.slow
def test_quantized_models_get_targets_too(model_dir: Path, tmp_path: Path) -> None:
    options = SMALL | {"quantize": "int8", "kv_dtype": "int8", "dtype": "bfloat16"}
    out = compile_sketch(model_dir, tmp_path / "a.ingot", (CPU,), **options)
    add(model_dir, out, GPU, **options)
    whole = compile_sketch(model_dir, tmp_path / "b.ingot", (CPU, GPU), **options)
    assert bytes_of(out) == bytes_of(whole)


def test_a_model_directory_can_have_another_name(
    model_dir: Path, artifact: Path, tmp_path: Path
) -> None:
    """What the artifact calls it stays."""
    name = Artifact.open(artifact, flags=frozenset()).manifest.model.name
    add(Path(shutil.copytree(model_dir, tmp_path / "renamed")), artifact, GPU)
    assert Artifact.open(artifact, flags=frozenset()).manifest.model.name == name


def refused(
    model_dir: Path, artifact: Path, *targets: str, **options: Any
) -> pytest.ExceptionInfo[IngotError]:
    """Adding fails, and the artifact is as it was."""
    before = bytes_of(artifact)
    with pytest.raises(IngotError) as raised:
        add(model_dir, artifact, *targets, **options)
    assert bytes_of(artifact) == before
    assert not list(artifact.parent.glob(".*"))
    return raised


@pytest.mark.cases(thorough=3)
@pytest.mark.parametrize(
    "options, said",
    [
        ({"max_model_len": 32}, "max_model_len is 64 in the artifact and would be 32 here"),
        ({"max_num_seqs": 2}, "max_num_seqs is 4"),
        ({"max_num_batched_tokens": 64}, "max_num_batched_tokens is 32"),
        ({"page_size": 32}, "page_size is 16"),
        ({"dtype": "bfloat16"}, "dtype is float32 in the artifact and would be bfloat16"),
        ({"quantize": "int8"}, "the quantization is another"),
        ({"kv_dtype": "int8"}, "another"),
        ({"disable_passes": ("group_residuals",)}, "cpu:portable would have another plan"),
        ({"disable_passes": ("merge_linears",)}, "what passes matched is another"),
    ],
)
def test_other_options_are_refused(
    model_dir: Path, artifact: Path, options: dict[str, Any], said: str
) -> None:
    raised = refused(model_dir, artifact, GPU, **options)
    assert raised.type is UsageError and said in raised.value.found
    assert "first compile" in raised.value.hint


def test_the_options_of_the_first_compile_are_told(model_dir: Path, artifact: Path) -> None:
    raised = refused(model_dir, artifact, GPU, max_model_len=None, dtype="auto")
    assert (
        "--dtype float32 --max-model-len 64 --max-num-seqs 4 --max-num-batched-tokens 32 "
        "--page-size 16" in raised.value.hint
    )


Change = Callable[[Path], object]


def other_weights(folder: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    (file,) = folder.glob("*.safetensors")
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith("down_proj.weight"))
    tensors[name] = tensors[name] + 0.05 * torch.ones_like(tensors[name])
    save_file(tensors, file, metadata={"format": "pt"})


def other_tokenizer(folder: Path) -> None:
    file = folder / "tokenizer_config.json"
    file.write_text(file.read_text() + " ")


def test_a_cpu_is_not_added_to_an_artifact_in_float16(model_dir: Path, tmp_path: Path) -> None:
    options = SMALL | {"dtype": "float16"}
    out = compile_sketch(model_dir, tmp_path / "a.ingot", (GPU,), **options)
    raised = refused(model_dir, out, CPU, **options)
    assert raised.type is UsageError and "cannot compute in float16" in raised.value.found
    add(model_dir, out, NEWER, **options)
    assert bytes_of(out) == bytes_of(
        compile_sketch(model_dir, tmp_path / "b.ingot", (GPU, NEWER), **options)
    )


CHANGES: dict[str, tuple[Change, str]] = {
    "weights": (other_weights, "other golden outputs"),
    "tokenizer": (other_tokenizer, "another tokenizer/tokenizer_config.json"),
    "model": (lambda folder: save_random("qwen3", folder, tokenizer=True), "another"),
}


@pytest.mark.cases(thorough=1)
@pytest.mark.parametrize("name", CHANGES)
def test_another_model_directory_is_refused(
    model_dir: Path, artifact: Path, tmp_path: Path, name: str
) -> None:
    change, said = CHANGES[name]
    other = Path(shutil.copytree(model_dir, tmp_path / "other"))
    change(other)
    raised = refused(other, artifact, GPU)
    assert raised.type is UsageError and said in raised.value.found


def test_a_target_that_is_there_is_refused(model_dir: Path, artifact: Path) -> None:
    raised = refused(model_dir, artifact, GPU, CPU)
    assert f"has the target {CPU} already" in raised.value.found


def test_targets_that_do_not_exist_are_refused(model_dir: Path, artifact: Path) -> None:
    assert "unknown target" in refused(model_dir, artifact, "cuda:sm_1").value.found


def test_another_ingot_is_refused(
    model_dir: Path, artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adding, "__version__", "99")
    assert "and this is 99" in refused(model_dir, artifact, GPU).value.found


@pytest.mark.parametrize("folder", ["weights", "targets"])
def test_a_damaged_artifact_is_refused(model_dir: Path, artifact: Path, folder: str) -> None:
    """Bytes of tensors are looked at, too."""
    file = max((artifact / folder).rglob("*.*"), key=lambda path: path.stat().st_size)
    data = bytearray(file.read_bytes())
    data[-1000] ^= 0x40
    file.write_bytes(data)
    assert refused(model_dir, artifact, GPU).type is ArtifactError


def test_without_an_artifact_there_is_nothing_to_add_to(model_dir: Path, tmp_path: Path) -> None:
    for out in (tmp_path / "none.ingot", tmp_path / "empty.ingot"):
        (tmp_path / "empty.ingot").mkdir(exist_ok=True)
        with pytest.raises(UsageError, match="there is no artifact at"):
            add(model_dir, out, GPU)
    assert not (tmp_path / "none.ingot").exists()


def test_a_build_that_fails_leaves_the_artifact_whole(
    model_dir: Path, artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ToolchainError("no")

    monkeypatch.setattr("tests.targets.cuda.simulation.sketch_all", fail)
    assert refused(model_dir, artifact, GPU).type is ToolchainError


def test_a_check_that_fails_leaves_the_artifact_whole(model_dir: Path, artifact: Path) -> None:
    def fail(folder: Path) -> None:
        assert Artifact.open(folder, flags=frozenset(), unfinished=True).manifest.targets[1:]
        raise ToolchainError("no")

    before = bytes_of(artifact)
    options = CompileOptions(targets=(GPU,), **SMALL)
    with pytest.raises(ToolchainError), sketching():
        add_targets(ModelDir.open(model_dir), artifact, options, check=fail)
    assert bytes_of(artifact) == before


def test_files_are_copied_where_they_cannot_be_linked(
    model_dir: Path, artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr("os.link", refuse)
    add(model_dir, artifact, GPU)
    Artifact.open(artifact, "full", flags=frozenset())


def test_golden_outputs_of_another_host_agree() -> None:
    def golden(value: float, token: int = 3) -> Golden:
        prompt = GoldenPrompt([GoldenPosition(token, [(5, value)])], given=1)
        return Golden(1, GoldenModel("m", "A", 8, 1, 1), {}, [prompt])

    assert outputs_agree(golden(-1.25), golden(-1.2501))
    assert not outputs_agree(golden(-1.25), golden(-1.26))
    assert not outputs_agree(golden(-1.25), golden(-1.25, token=4))
