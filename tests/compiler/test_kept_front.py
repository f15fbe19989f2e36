"""The front end's work is done once for a shape, and never taken for that of another."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from copy import copy
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from ingot.artifact.formats import Storage
from ingot.artifact.target import Target
from ingot.compiler import kept_front, lower_model
from ingot.compiler.front import Front
from ingot.compiler.graph_data import graph_data
from ingot.compiler.kept_front import decode_front, encode_front, front_key, front_of
from ingot.compiler.model import Model, read_model
from ingot.compiler.options import Clock, CompileOptions, silent
from ingot.compiler.resolve import Resolved
from ingot.targets.cpu import toolchain
from tests.support.tiny_models import save_random

OPTIONS = CompileOptions(targets="cpu:portable", quantize="int8", keep="*.layers.1.*=none")


def read(folder: Path, options: CompileOptions = OPTIONS) -> Model:
    return read_model(folder, options, Clock(silent))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random("gemma2", tmp_path_factory.mktemp("of") / "model", tokenizer=True)


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return read(folder)


@pytest.fixture(scope="module")
def made(model: Model) -> Front:
    return lower_model.lower_model(model, Clock(silent))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INGOT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kernels"


@pytest.fixture
def kept(cache: Path, model: Model, made: Front) -> Path:
    """The entry of the model, as a compile leaves it."""
    cache.mkdir(parents=True)
    kept_front.kept.keep(cache, front_key(model), encode_front(made), kept_front.SUFFIX, 4)
    (entry,) = cache.iterdir()
    return entry


@pytest.fixture
def exports(monkeypatch: pytest.MonkeyPatch, made: Front) -> list[Model]:
    """The models that were exported meanwhile."""
    found: list[Model] = []

    def lower(model: Model, clock: Clock) -> Front:
        found.append(model)
        return made

    monkeypatch.setattr(lower_model, "lower_model", lower)
    return found


def parts(front: Front) -> tuple[Any, ...]:
    """All that a front has; the plan as text, since equal dicts may differ in their order."""
    rest = (getattr(front, field.name) for field in fields(Front) if field.name != "reference")
    return (graph_data(front.reference.graph), *map(repr, rest))


def test_a_front_is_made_once_and_comes_back_whole(
    cache: Path, folder: Path, made: Front, exports: list[Model]
) -> None:
    first = front_of(read(folder), Clock(silent))
    assert len(exports) == 1 and first is made
    stages: list[str] = []
    again = front_of(read(folder), Clock(lambda stage, *_: stages.append(stage)))
    assert len(exports) == 1 and again is not made and stages == ["plan", "plan"]
    assert parts(again) == parts(made)
    assert [path.suffix for path in cache.iterdir()] == [".front"]


def test_weights_are_those_of_the_model_that_asks(kept: Path, folder: Path, made: Front) -> None:
    asking = read(folder)
    front = decode_front(kept.read_bytes(), asking)
    assert front is not None
    own = dict(asking.module.named_parameters())
    read_by = front.reference.graph.find_nodes(op="get_attr")
    assert read_by and all(
        front.reference.get_parameter(node.target) is own[node.target]
        for node in read_by
        if node.target in own
    )


RESOLVED = {
    "targets": (Target.parse("cpu:x86-64-v3"),),
    "dtype": "bfloat16",
    "dtype_reason": "as asked",
    "kv_dtype": "int8",
    "storage": Storage(4, 32),
    "int8": Storage(8, 128),
}
GIVEN = {
    "targets": ("cpu:x86-64-v3",),
    "dtype": "bfloat16",
    "quantize": "int4",
    "group_size": "64",
    "keep": (),
    "kv_dtype": "int8",
    "max_model_len": 33,
    "max_num_seqs": 3,
    "max_num_batched_tokens": 100,
    "page_size": 32,
    "disable_passes": ("merge_linears",),
}


@pytest.mark.parametrize("name", RESOLVED)
def test_the_key_changes_with_every_choice(model: Model, name: str) -> None:
    other = replace(model, resolved=replace(model.resolved, **{name: RESOLVED[name]}))
    assert front_key(other) != front_key(model) == front_key(model)


@pytest.mark.parametrize("name", GIVEN)
def test_the_key_changes_with_every_option(model: Model, name: str) -> None:
    other = replace(model, options=replace(model.options, **{name: GIVEN[name]}))
    assert front_key(other) != front_key(model)


def test_no_choice_and_no_option_was_forgotten() -> None:
    asked = {field.name for field in fields(CompileOptions)}
    # Where to dump and whether to verify: front_of takes nothing from the cache for these.
    assert asked - GIVEN.keys() == {"calibrate", "verify_passes", "dump_dir"}
    assert {field.name for field in fields(Resolved)} - RESOLVED.keys() == {"limits"}


def changed(value: Any) -> Any:
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, tuple):
        return value[:-1] if value else (1,)
    return value + 1 if isinstance(value, int | float) else None


def with_value(owner: Any, name: str) -> Any:
    """A copy with another value, whether it makes sense or not."""
    other = copy(owner)
    object.__setattr__(other, name, changed(getattr(owner, name)))
    return other


def test_the_key_changes_with_every_field_of_the_config_and_of_the_limits(model: Model) -> None:
    config, resolved = model.config, model.resolved
    others = [model, *(replace(model, config=with_value(config, f.name)) for f in fields(config))]
    for field in fields(config.rope):
        rope = copy(config)
        object.__setattr__(rope, "rope", with_value(config.rope, field.name))
        others.append(replace(model, config=rope))
    for field in fields(resolved.limits):
        limits = replace(resolved, limits=with_value(resolved.limits, field.name))
        others.append(replace(model, resolved=limits))
    assert len({front_key(other) for other in others}) == len(others) > 40


def module_with_more(model: Model) -> Model:
    module = torch.nn.Module()
    module.more = torch.nn.Linear(2, 2, device="meta")
    return replace(model, module=module)


CHANGES: dict[str, Callable[[pytest.MonkeyPatch, Path], object]] = {
    "torch": lambda patch, _: patch.setattr(torch, "__version__", "9.9"),
    "its commit": lambda patch, _: patch.setattr(torch.version, "git_version", "abc"),
    "python": lambda patch, _: patch.setattr(sys, "version", "4.0"),
    "ingot": lambda patch, _: patch.setattr(kept_front, "__version__", "9.9"),
    "sources": lambda patch, folder: patch.setattr(kept_front, "SOURCES", folder),
    "surroundings": lambda patch, _: patch.setattr(kept_front, "surroundings", lambda: {"a": 1}),
    "default dtype": lambda patch, _: patch.setattr(torch, "get_default_dtype", lambda: "float64"),
    "device": lambda patch, _: patch.setattr(torch, "get_default_device", lambda: "cuda"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_the_key_changes_with_what_made_the_front(
    what: str, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = front_key(model)
    CHANGES[what](monkeypatch, tmp_path)
    assert front_key(model) != before


def test_the_key_changes_with_the_module_and_with_a_calibration(model: Model) -> None:
    keys = {front_key(model), front_key(module_with_more(model))}
    calibrated = replace(model, calibration=[[1, 2]])
    keys.add(front_key(calibrated))
    assert len(keys) == 3
    # The text itself decides about weights alone.
    text = replace(model.options, calibrate=Path("a.txt"))
    assert front_key(replace(calibrated, options=text)) == front_key(calibrated)


def test_sources_are_told_by_path_and_content(tmp_path: Path) -> None:
    hashes = [kept_front.sources_hash(tmp_path)]
    for name, text in {"a.py": "1", "b/a.py": "1", "b/c.py": "1", "./a.py": "2"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        hashes.append(kept_front.sources_hash(tmp_path))
    assert len(set(hashes)) == len(hashes)
    os.utime(tmp_path / "a.py", (1, 1))
    assert kept_front.sources_hash(tmp_path) == hashes[-1]
    ours = {path.name for path in kept_front.SOURCES.rglob("*.py")}
    assert {"lower.py", "runner.py", "linear.py", "qwen3.py"} <= ours


KEY = """
import sys
from pathlib import Path
from ingot.compiler.kept_front import front_key
from ingot.compiler.model import read_model
from ingot.compiler.options import Clock, CompileOptions, silent
options = CompileOptions(targets="cpu:portable", quantize="int8", keep="*.layers.1.*=none")
print(front_key(read_model(Path(sys.argv[1]), options, Clock(silent))))
print("torch.fx.experimental.symbolic_shapes" in sys.modules)
"""


def test_another_process_finds_it_and_imports_nothing_that_exports(
    folder: Path, model: Model
) -> None:
    """Sets of texts have another order in every process."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "7"}
    command = [sys.executable, "-c", KEY, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=True)
    assert done.stdout.split() == [front_key(model), "False"]


@pytest.mark.parametrize("damage", ["cut", "changed", "none of ours"])
def test_a_damaged_entry_is_made_anew(
    damage: str, kept: Path, model: Model, made: Front, exports: list[Model]
) -> None:
    data = kept.read_bytes()
    key = kept.name.partition("-")[0]
    if damage == "none of ours":  # whole, but by another program
        kept.unlink()
        kept_front.kept.keep(kept.parent, key, b'{"nodes": []}', kept_front.SUFFIX, 4)
    else:
        kept.write_bytes(data[:-9] if damage == "cut" else data.replace(b"aten.", b"atem.", 1))
    assert front_of(model, Clock(silent)) is made and len(exports) == 1
    if damage != "none of ours":
        assert kept_front.kept.take(kept.parent, key, kept_front.SUFFIX) == data


@pytest.mark.parametrize("change", ["node", "plan", "order"])
def test_a_front_that_would_not_come_back_is_not_kept(
    change: str, cache: Path, model: Model, made: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    if change == "node":
        monkeypatch.setattr(kept_front, "graph_of", lambda nodes: torch.fx.Graph())
    elif change == "plan":
        first, *others = made.plan.instructions
        endless = replace(first, attrs={**first.attrs, "scale": float("inf")})
        made = replace(made, plan=replace(made.plan, instructions=(endless, *others)))
    else:
        real = msgspec.json.decode

        def sorting(data: bytes, type: Any) -> Any:
            return real(msgspec.json.encode(real(data), order="deterministic"), type=type)

        monkeypatch.setattr(msgspec.json, "decode", sorting)
    with pytest.raises(ValueError):
        encode_front(made)
    monkeypatch.setattr(lower_model, "lower_model", lambda *_: made)
    assert front_of(model, Clock(silent)) is made
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("wanted", [{"verify_passes": True}, {"dump_dir": "dump"}])
def test_passes_run_where_somebody_looks_at_them(
    wanted: dict[str, Any], kept: Path, model: Model, made: Front, exports: list[Model]
) -> None:
    before = kept.stat().st_mtime_ns
    looking = replace(model, options=replace(model.options, **wanted))
    assert front_of(looking, Clock(silent)) is made and len(exports) == 1
    assert kept.stat().st_mtime_ns == before and len(list(kept.parent.iterdir())) == 1


def test_a_compile_needs_no_cache(
    tmp_path: Path, model: Model, made: Front, exports: list[Model], monkeypatch: Any
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("INGOT_CACHE", str(tmp_path / "file"))
    assert front_of(model, Clock(silent)) is made and len(exports) == 1


def test_a_cache_that_takes_nothing_more_is_no_fault(
    cache: Path, model: Model, made: Front, exports: list[Model], monkeypatch: Any
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kept_front.kept, "keep", full)
    assert front_of(model, Clock(silent)) is made


def test_another_compiler_is_another_key(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = front_key(model)
    program = tmp_path / "g++"
    program.write_text("#!/bin/sh\necho 'g++ 1.0'\n")
    program.chmod(0o755)
    monkeypatch.setattr(toolchain, "find_compiler", lambda: (str(program),))
    monkeypatch.setenv("INGOT_CXX", str(program))
    assert front_key(model) != before
