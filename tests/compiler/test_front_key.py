"""The key of what the front end made: it changes with all that the front end reads."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from copy import copy
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ingot.artifact.formats import Storage
from ingot.compiler import kept_front
from ingot.compiler.kept_front import NOT_READ, front_key
from ingot.compiler.model import OpenModel, read_model
from ingot.compiler.options import Clock, CompileOptions, silent
from ingot.compiler.resolve import Resolved
from ingot.models.family import Family
from ingot.models.model_dir import ModelDir
from ingot.targets.cpu import toolchain
from ingot.targets.target import target_named
from tests.import_rules import ROOMS
from tests.support.tiny_models import save_random

OPTIONS = CompileOptions(targets="cpu:portable", quantize="int8", keep="*.layers.1.*=none")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random("gemma2", tmp_path_factory.mktemp("of") / "model", tokenizer=True)


@pytest.fixture(scope="module")
def model(folder: Path) -> OpenModel:
    return read_model(ModelDir.open(folder), OPTIONS, Clock(silent))


RESOLVED = {
    "targets": (target_named("cpu:x86-64-v3"),),
    "dtype": "bfloat16",
    "dtype_reason": "as asked",
    "kv_dtype": "int8",
    "storage": Storage(4, 32),
    "int8": Storage(8, 64),
    "keep": ("lm_head=int8",),
    "kept": {"model.norm.weight": Storage(4, 32)},
    "automatic": False,
}
GIVEN = {
    "library": "transformers",
    "targets": ("cpu:x86-64-v3",),
    "dtype": "bfloat16",
    "quantize": "int4",
    "bits": 5.0,
    "max_bytes": 90_000_000,
    "activations": "int16",
    "group_size": "64",
    "keep": (),
    "kv_dtype": "int8",
    "max_model_len": 33,
    "max_num_seqs": 3,
    "max_num_batched_tokens": 100,
    "page_size": 32,
    "disable_passes": ("merge_linears",),
    "cuda_reach": "new",
    "dequantize": True,
    "programs": ("step", "hidden"),
}


OTHERS: dict[str, Any] = {
    "quality": False, "quality_text": Path("a.txt"), "quality_positions": 9, "max_kl": 0.1,
}  # fmt: skip


@pytest.mark.cases(core=3)
@pytest.mark.parametrize("name", RESOLVED)
def test_the_key_changes_with_every_choice(model: OpenModel, name: str) -> None:
    other = replace(model, resolved=replace(model.resolved, **{name: RESOLVED[name]}))
    assert front_key(other) != front_key(model) == front_key(model)


@pytest.mark.cases(core=5)
@pytest.mark.parametrize("name", GIVEN)
def test_the_key_changes_with_every_option(model: OpenModel, name: str) -> None:
    other = replace(model, options=replace(model.options, **{name: GIVEN[name]}))
    assert front_key(other) != front_key(model)


def test_no_choice_and_no_option_was_forgotten() -> None:
    asked = {field.name for field in fields(CompileOptions)}
    # Where to dump and whether to verify: front_of takes nothing from the cache for these.
    assert asked - GIVEN.keys() == {"calibrate", "verify_passes", "dump_dir", *NOT_READ}
    assert {field.name for field in fields(Resolved)} - RESOLVED.keys() == {"limits", "programs"}


def changed(value: Any) -> Any:
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, tuple):
        return value[:-1] if value else (1,)
    if isinstance(value, Family):
        return replace(value, name=f"{value.name}x")
    if value is None:
        return "x"
    return value + 1 if isinstance(value, int | float) else None


def with_attribute(owner: Any, name: str, value: Any) -> Any:
    """A copy with that value, which nothing checks."""
    other = copy(owner)
    object.__setattr__(other, name, value)
    return other


def with_part(owner: Any, part: Any, other: Any) -> Any:
    """A copy in which another part, at any depth, stands for that one."""
    if owner is part:
        return other
    for field in fields(owner):
        if is_dataclass(inner := getattr(owner, field.name)):
            owner = with_attribute(owner, field.name, with_part(inner, part, other))
    return owner


def with_value(owner: Any, name: str) -> Any:
    """A copy with another value, whether it makes sense or not."""
    return with_attribute(owner, name, changed(getattr(owner, name)))


def test_the_key_changes_with_every_field_of_the_config_and_of_the_limits(model: OpenModel) -> None:
    config, resolved = model.config, model.resolved
    others = [model, *(replace(model, config=with_value(config, f.name)) for f in fields(config))]
    first = config.layers[0]
    for part in (first.mixer, first.mixer.rope, first.mlp):
        for field in fields(part):
            if not is_dataclass(getattr(part, field.name)):
                layers = (with_part(first, part, with_value(part, field.name)),)
                others.append(replace(model, config=with_attribute(config, "layers", layers)))
    for field in fields(resolved.limits):
        limits = replace(resolved, limits=with_value(resolved.limits, field.name))
        others.append(replace(model, resolved=limits))
    assert len({front_key(other) for other in others}) == len(others) > 40


def module_with_more(model: OpenModel) -> OpenModel:
    module = torch.nn.Module()
    module.more = torch.nn.Linear(2, 2, device="meta")
    return replace(model, module=module)


CHANGES: dict[str, Callable[[pytest.MonkeyPatch, Path], object]] = {
    "torch": lambda patch, _: patch.setattr(torch.version, "__version__", "9.9"),
    "its commit": lambda patch, _: patch.setattr(torch.version, "git_version", "abc"),
    "python": lambda patch, _: patch.setattr(sys, "version", "4.0"),
    "ingot": lambda patch, _: patch.setattr(kept_front, "__version__", "9.9"),
    "sources": lambda patch, _: patch.setattr(kept_front, "LOADED", "of other sources"),
    "surroundings": lambda patch, _: patch.setattr(kept_front, "surroundings", lambda: {"a": 1}),
    "default dtype": lambda patch, _: patch.setattr(torch, "get_default_dtype", lambda: "float64"),
    "device": lambda patch, _: patch.setattr(torch, "get_default_device", lambda: "cuda"),
}


@pytest.mark.cases(core=4)
@pytest.mark.parametrize("what", CHANGES)
def test_the_key_changes_with_what_made_the_front(
    what: str, model: OpenModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = front_key(model)
    CHANGES[what](monkeypatch, tmp_path)
    assert front_key(model) != before


def test_the_key_changes_with_the_module_its_orders_and_a_calibration(model: OpenModel) -> None:
    keys = {front_key(model), front_key(module_with_more(model))}
    calibrated = replace(model, calibration=[[1, 2]])
    keys.add(front_key(calibrated))
    keys.add(front_key(replace(model, orders={"q.weight": "q.column_order"})))
    keys.add(front_key(replace(model, orders={"q.weight": "k.column_order"})))
    assert len(keys) == 5
    # The text itself decides about weights alone.
    assert {front_key(replace(model, options=replace(model.options, **{name: value})))
            for name, value in OTHERS.items()} == {front_key(model)}  # fmt: skip
    text = replace(model.options, calibrate=Path("a.txt"))
    assert front_key(replace(calibrated, options=text)) == front_key(calibrated)


def test_sources_are_told_by_path_and_content(tmp_path: Path) -> None:
    hashes = [kept_front.sources_hash(tmp_path)]
    for name, text in {"a.py": "1", "ops/a.py": "1", "ops/b/a.py": "1", "./a.py": "2"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        hashes.append(kept_front.sources_hash(tmp_path))
    assert len(set(hashes)) == len(hashes)
    os.utime(tmp_path / "a.py", (1, 1))
    assert kept_front.sources_hash(tmp_path) == hashes[-1]
    (tmp_path / "runtime").mkdir()
    (tmp_path / "runtime" / "a.py").write_text("of no matter")
    assert kept_front.sources_hash(tmp_path) == hashes[-1]


def test_the_rooms_that_count_are_those_that_the_compiler_may_import() -> None:
    assert set(kept_front.ROOMS) == {"compiler", *ROOMS["compiler"]}
    below = {room for name in kept_front.ROOMS for room in ROOMS[name]}
    assert below <= set(kept_front.ROOMS)
    assert kept_front.sources_hash(kept_front.SOURCES) == kept_front.LOADED


KEY = """
import sys
from pathlib import Path
from ingot.compiler.kept_front import front_key
from ingot.compiler.model import read_model
from ingot.compiler.options import Clock, CompileOptions, silent
from ingot.models.model_dir import ModelDir
options = CompileOptions(targets="cpu:portable", quantize="int8", keep="*.layers.1.*=none")
model_dir = ModelDir.open(Path(sys.argv[1]))
print(front_key(read_model(model_dir, options, Clock(silent))))
print("torch.fx.experimental.symbolic_shapes" in sys.modules)
"""


def test_another_process_finds_it_and_imports_nothing_that_exports(
    folder: Path, model: OpenModel
) -> None:
    """Sets of texts have another order in every process."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "7"}
    command = [sys.executable, "-c", KEY, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=True)
    assert done.stdout.split() == [front_key(model), "False"]


def test_another_compiler_is_another_key(
    model: OpenModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = front_key(model)
    program = tmp_path / "g++"
    program.write_text("#!/bin/sh\necho 'g++ 1.0'\n")
    program.chmod(0o755)
    monkeypatch.setattr(toolchain, "find_compiler", lambda: (str(program),))
    monkeypatch.setenv("INGOT_CXX", str(program))
    assert front_key(model) != before
