"""The key of the cache changes with everything that an artifact depends on beside the model."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest

from ingot import compiled
from ingot.artifact.gpu import Gpu
from ingot.compiler import surroundings
from ingot.compiler.options import CompileOptions
from ingot.models import registry
from ingot.models.families import llama
from ingot.models.model_dir import ModelDir
from ingot.targets import target
from ingot.targets.cpu import kind as cpu_kind
from ingot.targets.cuda import kind
from ingot.targets.cuda.triton_package import TritonPackage

ROOT = Path(__file__).resolve().parent.parent


def key_of(folder, options):
    return compiled.cache_key(ModelDir.open(folder), options)


@pytest.fixture
def key(tmp_path, monkeypatch):
    """The key of a model directory, in a process that forgets what a test registers."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    monkeypatch.setattr(registry, "_registered", dict(registry.families()))
    monkeypatch.setattr(registry, "_by_hand", {})
    with patch.dict(target.KINDS):
        yield partial(key_of, folder, CompileOptions())


def test_nothing_changes_it_by_itself(key):
    assert key() == key()


@pytest.mark.parametrize("name", ["special_tokens_map.json", "additional_chat_templates/rag.jinja"])
def test_a_file_of_the_tokenizer(key, name):
    before = key()
    path = key.args[0] / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("{}")
    assert key() != before


@pytest.mark.parametrize("package", ["torch", "triton"])
def test_another_version_of_a_package(key, monkeypatch, tmp_path, package):
    before = key()
    version = surroundings._version
    monkeypatch.setattr(
        surroundings, "_version", lambda name: "9.9" if name == package else version(name)
    )
    if package == "triton":
        monkeypatch.setattr(kind, "find_triton", lambda: TritonPackage("9.9", tmp_path))
    assert key() != before


def test_another_gpu_where_the_targets_are_those_of_this_host(key, monkeypatch):
    of_gpu = partial(key_of, key.args[0], CompileOptions(targets=("cuda:native",)))
    before, unchanged = of_gpu(), key()
    monkeypatch.setattr(compiled, "find_gpus", lambda: (Gpu(0, (9, 0)),))
    assert of_gpu() != before
    assert key() == unchanged


def compiler(path: Path, says: str) -> None:
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    os.utime(path, (1, 1))


def test_another_version_of_the_compiler(key, tmp_path, monkeypatch):
    program = tmp_path / "g++"
    monkeypatch.setenv("INGOT_CXX", str(program))
    compiler(program, "g++ 12.1.0")
    before = key()
    assert key() == before
    compiler(program, "g++ 12.2.0")  # the same path, size and time
    assert key() != before


def test_another_compiler_and_another_file_of_it(key, tmp_path, monkeypatch):
    keys = []
    for name in ("g++", "clang++"):
        compiler(tmp_path / name, "the same")
        monkeypatch.setenv("INGOT_CXX", str(tmp_path / name))
        keys.append(key())
    os.utime(tmp_path / "clang++", (2, 2))
    keys.append(key())
    monkeypatch.setenv("INGOT_CXX", f"{tmp_path / 'clang++'} -O0")
    keys.append(key())
    monkeypatch.setenv("INGOT_CXX", str(tmp_path / "none"))
    keys.append(key())
    assert len(set(keys)) == 5


def test_a_compiler_that_says_nothing_in_time_is_never_found_again(key, monkeypatch):
    def late(command):
        raise subprocess.TimeoutExpired(command, 1)

    monkeypatch.setattr(cpu_kind, "identity", late)
    assert key() != key()


def package(folder: Path, version: str, **files: str) -> None:
    """An installed package with a family, as pip leaves it."""
    info = folder / "moon_for_ingot.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: moon-for-ingot\nVersion: {version}\n"
    )
    (info / "entry_points.txt").write_text("[ingot.families]\nmoon = moon.family:FAMILY\n")
    for name, text in files.items():
        path = folder / "moon" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def test_the_package_of_a_family_its_version_and_its_sources(key, tmp_path, monkeypatch):
    assert surroundings.FAMILIES == registry.ENTRY_POINT_GROUP
    monkeypatch.syspath_prepend(tmp_path)
    keys = [key()]
    package(tmp_path, "1.0", __init__="", family="FAMILY = 1", blocks="")
    keys.append(key())
    assert key() == keys[-1]
    package(tmp_path, "1.1")
    keys.append(key())
    package(tmp_path, "1.1", blocks="x = 1  # not the file that the entry point names")
    keys.append(key())
    assert len(set(keys)) == 4
    assert "moon" not in sys.modules


def module(folder: Path, name: str, source: str) -> types.ModuleType:
    """A module on the path, loaded anew from that source."""
    (folder / f"{name}.py").write_text(source)
    loaded = types.ModuleType(name)
    exec(source, loaded.__dict__)
    return loaded


@pytest.mark.parametrize("part", ["parse", "build"])
def test_a_registered_family_by_its_sources_and_its_tables(key, tmp_path, monkeypatch, part):
    """Each of its functions may come from a package of its own."""
    monkeypatch.syspath_prepend(tmp_path)
    keys = [key()]
    for source in ("def part(fields): ...", "def part(fields): return None"):
        function = module(tmp_path, f"moon_{part}", source).part
        family = replace(llama.FAMILY, name="moon", architectures=("Moon",), **{part: function})
        registry._registered.pop("moon", None)
        registry.register(family)
        keys.append(key())
        assert key() == keys[-1]
    registry._registered.pop("moon")
    registry.register(replace(family, weights={"a": "b"}))
    keys.append(key())
    assert len(set(keys)) == 4


@pytest.mark.parametrize("what", ["closure", "partial", "typed in"])
def test_a_family_whose_sources_do_not_tell_all_is_never_found_again(key, what):
    typed = types.ModuleType("no_such_module")
    exec("def parse(fields): ...", typed.__dict__)
    parse = {
        "closure": lambda fields: what,
        "partial": partial(llama.FAMILY.parse),
        "typed in": typed.parse,
    }[what]
    registry.register(replace(llama.FAMILY, name="moon", architectures=("Moon",), parse=parse))
    assert key() != key()


def test_a_registered_kind_of_target(key, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    before = key()
    source = "class Moon:\n    name = 'moon'\n    names = None\n"
    target.register(module(tmp_path, "moon_kind", source).Moon())
    first = key()
    assert first != before and key() == first
    target.register(module(tmp_path, "moon_kind", source + "    more = 1\n").Moon())
    assert key() not in (before, first)


def test_the_sources_of_the_generated_code(key, tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "SOURCES", tmp_path / "sources")
    (tmp_path / "sources" / "kernels").mkdir(parents=True)
    keys = [key()]
    for name in ("a.py", "kernels/a.h", "unit.cpp"):
        (tmp_path / "sources" / name).write_text("x")
        keys.append(key())
    assert len(set(keys)) == 4


SAME_KEY = """
import sys
from pathlib import Path
from ingot.compiled import cache_key
from ingot.compiler.options import CompileOptions
from ingot.models.model_dir import ModelDir
options = CompileOptions()
folder = ModelDir.open(Path(sys.argv[1]))
first = cache_key(folder, options)
assert "torch" not in sys.modules
from ingot.artifact.host import host_flags
from ingot.models import registry
from ingot.targets.cpu.levels import native_target
from ingot.targets.target import kind_of
registry.families(), kind_of(native_target(host_flags()))
assert cache_key(ModelDir.open(folder.path), options) == first
"""


def test_it_imports_no_torch_and_stays_what_it_was_after_a_compile(key, tmp_path):
    command = [sys.executable, "-c", SAME_KEY, str(tmp_path / "model")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
