"""The public face: lazy names, the settings, and the cache of compiled model directories."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ingot
from ingot import api, cache
from ingot.artifact.reader import Artifact
from ingot.compiler.options import CompileOptions, Report
from ingot.errors import ArtifactError, ResourceError, UsageError
from ingot.settings import settings
from tests.runtime.fake_model import greedy, write_fake

ROOT = Path(__file__).resolve().parents[2]
GREEDY = ingot.SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)


def loaded_after(statement: str) -> set[str]:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {statement}; print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(out.stdout.split())


def test_importing_ingot_loads_nothing_heavy():
    heavy = {"numpy", "torch", "tokenizers", "jinja2", "msgspec", "safetensors", "argparse"}
    assert not heavy & loaded_after("import ingot")
    assert "ingot.errors" not in loaded_after("import ingot; ingot.__version__; dir(ingot)")


def test_the_runtime_loads_no_torch_and_what_it_needs_only_when_it_is_needed():
    modules = loaded_after("import ingot; ingot.LLM; ingot.SamplingParams")
    assert "numpy" in modules  # the control: it did load
    assert not {"torch", "tokenizers", "jinja2", "transformers", "asyncio"} & modules
    assert "concurrent.futures" not in modules
    assert "asyncio" in loaded_after("import ingot; ingot.AsyncLLM")


def test_every_public_name_is_there_and_no_other():
    for name in ingot.__all__:
        assert getattr(ingot, name) is not None
        assert name in dir(ingot)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = ingot.nonsense


def test_settings_come_from_the_environment(tmp_path):
    env = {"INGOT_CACHE": str(tmp_path), "CXX": "clang++", "INGOT_DEBUG": "2", "NO_COLOR": "1"}
    read = settings(env)
    assert (read.cache_dir, read.cxx, read.debug, read.color) == (tmp_path, "clang++", 2, False)
    assert settings(env | {"INGOT_CXX": "g++"}).cxx == "g++"
    assert settings({"XDG_CACHE_HOME": "/x"}).cache_dir == Path("/x/ingot")
    assert settings({"XDG_CACHE_HOME": "x"}).cache_dir == Path.home() / ".cache" / "ingot"
    assert settings({}).cxx is None and settings({}).debug == 0 and settings({}).color


@pytest.mark.parametrize("env", [{"INGOT_CASHE": "x"}, {"INGOT_DEBUG": "6"}, {"INGOT_DEBUG": "on"}])
def test_a_wrong_setting_is_an_error_and_not_ignored(env):
    with pytest.raises(UsageError, match="INGOT_"):
        settings(env)


@pytest.fixture
def model_dir(tmp_path, monkeypatch):
    """A model directory that "compiles" to the fake artifact, and a list of the compiles."""
    monkeypatch.setenv("INGOT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "SOURCES", tmp_path / "sources")
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    compiles = []

    def compile_checked(source, out, options=None, progress=None):
        compiles.append((source, options))
        write_fake(out)
        manifest = Artifact.open(out).manifest
        return Report(artifact=out, manifest=manifest, seconds=1.0, stage_seconds={},
                      bytes_total=1, weight_bytes=1)  # fmt: skip

    monkeypatch.setattr(api, "compile_checked", compile_checked)
    return folder, compiles


def test_a_model_directory_is_compiled_once_and_stderr_says_so(model_dir, capsys):
    folder, compiles = model_dir
    for _ in range(2):
        with ingot.LLM(folder) as llm:
            assert llm.generate([[5]], GREEDY)[0].outputs[0].token_ids == greedy([5], 5)
    captured = capsys.readouterr()
    assert len(compiles) == 1
    assert captured.out == "" and captured.err.count("compiling") == 1


def test_another_model_or_other_options_are_another_artifact(model_dir):
    folder, compiles = model_dir
    first = cache.resolve(folder)
    assert cache.resolve(folder, CompileOptions()) == first
    assert cache.resolve(folder, CompileOptions(dtype="float32")) != first
    (folder / "model.safetensors").write_bytes(b"weight2")
    second = cache.resolve(folder)
    (folder / "config.json").write_text("[]")
    third = cache.resolve(folder)
    (cache.SOURCES / "compiler").mkdir(parents=True)
    (cache.SOURCES / "compiler" / "kernel.h").write_text("better")
    fourth = cache.resolve(folder)
    assert len({first, second, third, fourth}) == 4 and len(compiles) == 5


def test_a_damaged_artifact_in_the_cache_is_compiled_again(model_dir, capsys):
    folder, compiles = model_dir
    artifact = cache.resolve(folder)
    (artifact / "golden/golden.json").write_text("x")
    assert cache.resolve(folder) == artifact and len(compiles) == 2
    assert "unusable" in capsys.readouterr().err
    shutil.rmtree(artifact / "targets")
    (artifact / "manifest.json").unlink()
    assert cache.resolve(folder) == artifact and len(compiles) == 3
    Artifact.open(artifact)


def test_an_artifact_is_itself_and_takes_no_compile_options(model_dir, fake_artifact):
    assert cache.resolve(fake_artifact) == fake_artifact
    with pytest.raises(UsageError, match="compiled already"):
        ingot.LLM(fake_artifact, compile_options={"dtype": "float32"})
    with pytest.raises(UsageError, match="unknown compile option 'dtyp'"):
        ingot.LLM(model_dir[0], compile_options={"dtyp": "float32"})
    with pytest.raises(ArtifactError, match="does not exist"):
        ingot.LLM(fake_artifact / "nothing")


def test_a_cache_that_cannot_be_written_is_a_typed_error(model_dir, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("INGOT_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ResourceError, match="INGOT_CACHE"):
        cache.resolve(model_dir[0])
