"""Where an artifact is asked for: what is taken as it is, compiled, found again or refused."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ingot import compiled as door
from ingot.artifact.reader import Artifact
from ingot.cache import store
from ingot.cache.artifacts import (
    ID_DIGITS,
    Artifacts,
    CachedArtifact,
    entry_name,
)
from ingot.cache.store import touch
from ingot.compiled import cache_key, resolve
from ingot.compiler.options import CompileOptions
from ingot.errors import CheckpointError, ResourceError
from ingot.models.model_dir import ModelDir
from ingot.targets.cpu import kind
from tests.cli.sample_artifact import write_sample

OTHER_OPTIONS = {
    "targets": ("cpu:portable",),
    "dtype": "float32",
    "quantize": "int8",
    "kv_dtype": "int8",
    "cuda_reach": "new",
    "max_model_len": 64,
    "max_num_seqs": 3,
    "max_num_batched_tokens": 77,
    "page_size": 32,
    "verify_passes": True,
    "disable_passes": ("x",),
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "some-model"
    folder.mkdir()
    (folder / "config.json").write_text('{"a": 1}')
    (folder / "model.safetensors").write_bytes(bytes(10))
    return folder


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, CompileOptions]]:
    """What was compiled, by a compiler that writes a sample."""
    done = []

    def compile_checked(source: Path, artifact: Path, options: CompileOptions) -> object:
        done.append((source, options))
        write_sample(artifact)
        return type("Report", (), {"seconds": 1.26})

    monkeypatch.setattr("ingot.compiling.compile_checked", compile_checked)
    monkeypatch.setenv("INGOT_CACHE", str(tmp_path / "deep" / "cache"))
    return done


def test_a_model_is_compiled_once_and_told_so(model, compiled, tmp_path, capsys) -> None:
    artifact = resolve(str(model))
    key = cache_key(ModelDir.open(model), CompileOptions())
    assert artifact == tmp_path / "deep/cache" / f"some-model-{key[:16]}.ingot"
    said = capsys.readouterr()
    assert f"ingot: compiling {model} into {artifact} (once)\n" in said.err and said.out == ""
    assert said.err.endswith("ingot: compiled in 1.3 s\n")
    assert resolve(model) == resolve(model, CompileOptions()) == artifact
    assert compiled == [(model, CompileOptions())] and capsys.readouterr().err == ""
    assert os.listdir(artifact.parent) == [artifact.name]


def test_other_options_are_another_artifact(model, compiled) -> None:
    wanted = CompileOptions(dtype="float32")
    assert resolve(model, wanted) != resolve(model)
    assert [options for _, options in compiled] == [wanted, CompileOptions()]


@pytest.mark.parametrize("damage", ["manifest.json", "weights/cpu-float32.safetensors"])
def test_what_is_damaged_is_compiled_again(model, compiled, damage, capsys) -> None:
    artifact = resolve(model)
    (artifact / damage).write_bytes(b"{}")
    assert resolve(model) == artifact and len(compiled) == 2
    told = "the cached artifact is unusable and will be compiled again: "
    assert capsys.readouterr().err.count(told) == 1
    Artifact.open(artifact, "full")


@pytest.mark.parametrize("damage", ["manifest.json", "weights/cpu-float32.safetensors"])
def test_an_interrupted_removal_of_what_is_damaged_is_found(
    model, compiled, damage, monkeypatch
) -> None:
    artifact = resolve(model)
    (artifact / damage).write_bytes(b"{}")

    def killed(folder: Path, **_: object) -> None:
        (folder / "manifest.json").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            resolve(model)
    assert len(os.listdir(artifact.parent)) == 1
    Artifacts(artifact.parent).shrink(0)
    assert os.listdir(artifact.parent) == []


def test_what_is_damaged_and_cannot_be_removed_is_told(model, compiled, monkeypatch) -> None:
    """As in a cache with the sticky bit, of another user."""
    artifact = resolve(model)
    (artifact / "manifest.json").write_bytes(b"{}")

    def refused(path: Path, aside: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", str(path), str(aside))

    monkeypatch.setattr(Path, "rename", refused)
    told = f"{artifact} is damaged and cannot be removed: Operation not permitted"
    with pytest.raises(ResourceError, match=told) as info:
        resolve(model)
    assert "INGOT_CACHE" in info.value.hint and len(compiled) == 1


def test_what_is_no_artifact_makes_room_for_one(model, compiled) -> None:
    artifact = resolve(model)
    (artifact / "manifest.json").unlink()
    assert resolve(model) == artifact and len(compiled) == 2


def test_what_is_no_model_is_left_to_the_reader(tmp_path, compiled) -> None:
    artifact = write_sample(tmp_path / "a.ingot")
    (artifact / "config.json").write_text("{}")  # of an artifact it is no matter
    for path in (artifact, tmp_path / "none", tmp_path):
        assert resolve(str(path)) == path
    assert compiled == []


def test_another_programs_model_is_refused(tmp_path, compiled) -> None:
    (tmp_path / "m.onnx").write_bytes(b"ONNX")
    with pytest.raises(CheckpointError, match="a model in ONNX"):
        resolve(tmp_path / "m.onnx")


def test_a_gguf_file_is_a_model_with_a_key_of_its_own(tmp_path, compiled) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")
    first = cache_key(ModelDir.open(path), CompileOptions())
    resolve(path)
    assert len(compiled) == 1
    path.write_bytes(b"GGUF again")
    assert cache_key(ModelDir.open(path), CompileOptions()) != first
    second = cache_key(ModelDir.open(path), CompileOptions())
    (tmp_path / "tokenizer.json").write_text("{}")
    assert cache_key(ModelDir.open(path), CompileOptions()) != second, "it may be read"
    third = cache_key(ModelDir.open(path), CompileOptions())
    (tmp_path / "other.gguf").write_bytes(b"")
    assert cache_key(ModelDir.open(path), CompileOptions()) == third


def test_a_cache_that_cannot_be_is_told(model, compiled, tmp_path) -> None:
    (tmp_path / "deep").write_text("a file is in the way")
    with pytest.raises(
        ResourceError, match=r"no cache for compiled models at .*deep/cache"
    ) as info:
        resolve(model)
    assert "INGOT_CACHE" in info.value.hint and compiled == []


def test_a_cache_that_takes_no_lock_is_told(model, compiled, tmp_path) -> None:
    artifact = resolve(model)
    (artifact / "manifest.json").unlink()
    (artifact.parent / f".{artifact.name}.resolve.lock").mkdir()
    with pytest.raises(ResourceError, match=r"at .*deep/cache: Is a directory") as info:
        resolve(model)
    assert "INGOT_CACHE" in info.value.hint and len(compiled) == 1


def test_a_fault_of_the_compile_is_none_of_the_cache(model, compiled, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left")

    monkeypatch.setattr("ingot.compiling.compile_checked", full)
    with pytest.raises(OSError, match="No space left"):
        resolve(model)


@pytest.mark.cases(core=4)
@pytest.mark.parametrize("name", OTHER_OPTIONS)
def test_the_key_knows_every_option(model, name) -> None:
    other = CompileOptions(**{name: OTHER_OPTIONS[name]})
    assert cache_key(ModelDir.open(model), other) != cache_key(
        ModelDir.open(model), CompileOptions()
    )


def replaced(path: Path, data: bytes) -> None:
    """Other content at the same time of change."""
    before = path.stat().st_mtime_ns
    path.write_bytes(data)
    os.utime(path, ns=(before, before))


CHANGES: dict[str, Callable[[Path], object]] = {
    "the config, of the same size and time": lambda m: replaced(m / "config.json", b'{"a": 2}'),
    "the size of the weights": lambda m: replaced(m / "model.safetensors", bytes(11)),
    "the time of the weights": lambda m: os.utime(m / "model.safetensors", ns=(5, 5)),
    "one nanosecond": lambda m: os.utime(m / "config.json", ns=(0, 1)),
    "another file": lambda m: (m / "tokenizer.json").write_text(""),
    "another name": lambda m: (m / "model.safetensors").rename(m / "x.safetensors"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_key_knows_every_file_of_the_model(model, change) -> None:
    os.utime(model / "config.json", ns=(0, 0))
    before = cache_key(ModelDir.open(model), CompileOptions())
    CHANGES[change](model)
    assert cache_key(ModelDir.open(model), CompileOptions()) != before


def test_the_key_is_that_of_the_content_wherever_it_lies(model, tmp_path) -> None:
    before = cache_key(ModelDir.open(model), CompileOptions())
    (model / "config.json").read_text()
    copy = shutil.copytree(model, tmp_path / "elsewhere")
    assert cache_key(ModelDir.open(copy), CompileOptions()) == before


def test_the_key_knows_the_text_of_a_calibration(model, tmp_path) -> None:
    options = CompileOptions(calibrate=tmp_path / "text")
    keys = [cache_key(ModelDir.open(model), options)]
    for text in ("one", "three"):
        (tmp_path / "text").write_text(text)
        keys.append(cache_key(ModelDir.open(model), options))
    assert len({*keys, cache_key(ModelDir.open(model), CompileOptions())}) == 4


def test_the_key_knows_the_version_and_the_host(model, monkeypatch) -> None:
    keys = []
    for flags in ({"x86_64"}, {"x86_64", "avx2", "fma", "f16c", "bmi1", "bmi2"}):
        monkeypatch.setattr(kind, "host_flags", lambda flags=flags: frozenset(flags))
        keys.append(cache_key(ModelDir.open(model), CompileOptions()))
    monkeypatch.setattr(door, "__version__", "0.0.0.dev9")
    keys.append(cache_key(ModelDir.open(model), CompileOptions()))
    assert len(set(keys)) == 3


@pytest.mark.parametrize(
    ("model", "shown"), [("a/b", "a/b"), ("b", "b"), ("a/b--c", "a/b--c"), ("a/b-0", "a/b-0")]
)
def test_names_come_back(tmp_path: Path, model: str, shown: str) -> None:
    key = "0123456789abcdef" * 4
    path = write_sample(tmp_path / entry_name(model, key))
    assert path.name.endswith("-0123456789abcdef.ingot")
    ((found),) = Artifacts(tmp_path).entries()
    assert (found.model, found.id, found.path) == (shown, key[:ID_DIGITS], path)


def test_only_artifacts_of_the_cache_are_entries(tmp_path: Path) -> None:
    for name in ("a.ingot", "a-0123.ingot", "a-0123456789abcdeg.ingot", "a-0123456789abcdef"):
        write_sample(tmp_path / name)
    (tmp_path / "b-0123456789abcdef.ingot").mkdir()
    assert Artifacts(tmp_path).entries() == []


def test_a_limit_that_is_just_reached_is_kept(tmp_path: Path) -> None:
    for index in range(2):
        path = write_sample(tmp_path / entry_name("m", f"{index}" * 64))
        os.utime(path, (index, index))
    total = sum(entry.nbytes for entry in Artifacts(tmp_path).entries())
    assert Artifacts(tmp_path).shrink(total) == []
    assert [entry.id for entry in Artifacts(tmp_path).shrink(total - 1)] == ["00000000"]
    assert Artifacts(tmp_path / "none").shrink(0) == []


def test_one_that_is_gone_already_counts_as_removed(tmp_path: Path) -> None:
    assert Artifacts(tmp_path).remove(CachedArtifact(tmp_path / "gone", 1, 0.0, "m", "0"))


def test_a_cache_that_can_only_be_read_is_used(tmp_path, monkeypatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(store.os, "utime", refused)
    touch(tmp_path)
