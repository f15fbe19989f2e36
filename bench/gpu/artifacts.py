"""Compiles the artifacts that a run needs, each in a process of its own, side by side."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from bench.gpu.results import Values, last_lines
from bench.gpu.setting import Setting, built_of
from bench.processes import ROOT, run_script
from ingot.artifact.reader import Artifact
from ingot.errors import IngotError
from ingot.models.model_dir import ModelDir

CUDA, CPU = "cuda:native", "cpu:native"
MODELS = {"shakespeare": ROOT / "golden" / "models" / "shakespeare"}  # others are made
# Steps of 2,048 tokens, and sequences that begin with as many.
LONG = {"max_model_len": 4096, "max_num_batched_tokens": 2048}


@dataclass(frozen=True, slots=True)
class Recipe:
    """How an artifact is compiled: of the bundled model, or of one of random weights."""

    model: str
    options: Mapping[str, Any] = field(default_factory=dict)
    targets: tuple[str, ...] = (CUDA,)
    disk_gb: float = 1.0
    dependent: bool = False  # with launches that begin before the one before them ends


def _recipes() -> dict[str, Recipe]:
    formats: dict[str, dict[str, Any]] = {
        "bf16": {}, "int8": {"quantize": "int8", "group_size": 128},
        "int4": {"quantize": "int4", "group_size": 32},
        "kv8": {"kv_dtype": "int8"},
    }  # fmt: skip
    found = {
        f"shakespeare-{name}": Recipe("shakespeare", options, (CUDA, CPU))
        for name, options in formats.items()
    } | {
        f"shakespeare-{name}": Recipe("shakespeare", {"dtype": dtype})
        for name, dtype in (("f32", "float32"), ("f16", "float16"))
    }
    for shape, gigabytes in (("qwen3-0.6b", 1.5), ("llama-3.1-8b", 16.5)):
        for name in ("bf16", "int4"):
            share = 1.0 if name == "bf16" else 0.35
            found[f"{shape}-{name}"] = Recipe(
                shape, {**LONG, **formats[name]}, disk_gb=share * gigabytes
            )
    for name, shape in (("experts", "small-experts"), ("latent", "small-latent")):
        found |= {f"{name}-{each}": Recipe(shape, formats[each], disk_gb=0.1) for each in formats}
    for name, shape in (
        ("delta", "small-delta"), ("mamba2", "small-mamba2"), ("rwkv", "rwkv7-small"),
    ):  # fmt: skip
        found |= {
            f"{name}-{each}": Recipe(shape, options, (CUDA, CPU), disk_gb=0.2)
            for each, options in (("bf16", {}), ("f32", {"dtype": "float32"}))
        }
    for name in ("shakespeare-bf16", "qwen3-0.6b-bf16"):
        found[f"{name}-dependent"] = replace(found[name], dependent=True)
    return found


RECIPES: Mapping[str, Recipe] = _recipes()


def build(setting: Setting, *names: str) -> None:
    """Compiles what is not there. Raises RuntimeError where an artifact could not be compiled."""
    for name in names:
        if (path := setting.path(name)).is_dir():
            setting.report.note(**{name: {"taken from": str(path), **described(path)}})
    missing = [name for name in names if not setting.path(name).is_dir()]
    for model in dict.fromkeys(RECIPES[name].model for name in missing):
        began = time.monotonic()
        made = made_model(model, setting.work)
        if made not in MODELS.values():
            setting.report.note(**{f"{model} made in s": round(time.monotonic() - began, 1)})
    started = {name: start(setting.work, name) for name in missing}
    errors = []
    for name, process in started.items():
        log = process.communicate()[0]
        if process.returncode:
            errors.append(f"{name}: {last_lines(log, 4)}")
        else:
            setting.report.note(**{name: json.loads(log.splitlines()[-1])})
    if errors:
        raise RuntimeError("\n".join(errors))


def made_model(model: str, work: Path) -> Path:
    """The folder of a model; one of random weights is made where it is not there.

    Raises RuntimeError where the disk has no room for it and its artifacts.
    """
    if model in MODELS:
        return MODELS[model]
    folder = work / model
    if (folder / "done").exists():
        return folder
    check_room(model, shutil.disk_usage(work).free / 1e9)
    run_script("make_model", str(folder), "--shape", model, "--repeat")
    (folder / "done").touch()
    return folder


def check_room(model: str, free_gb: float) -> float:
    """GB of the model and its artifacts. Raises RuntimeError where that is more than is free."""
    artifacts = [recipe.disk_gb for recipe in RECIPES.values() if recipe.model == model]
    needed = sum(artifacts) + max(artifacts)
    if needed > free_gb:
        raise RuntimeError(f"{model} takes {needed:.0f} GB of disk, and {free_gb:.0f} are free")
    return needed


def start(work: Path, name: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench.gpu.artifacts", str(work), name]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def compiled(work: Path, name: str) -> Values:
    """Compiles an artifact; without its CPU target where that cannot be built here.

    Its golden prompts are not replayed: that is a part of its own.
    """
    from ingot.compiler.compile import compile_model
    from ingot.compiler.options import CompileOptions
    from ingot.targets.cuda import dependent

    recipe, model = RECIPES[name], made_model(RECIPES[name].model, work)
    out, noted = work / f"{name}.ingot", Values()
    with patch.object(dependent, "ENABLED", recipe.dependent):
        try:
            options = CompileOptions(targets=recipe.targets, **recipe.options)
            report = compile_model(ModelDir.open(model), out, options)
        except IngotError as error:
            if recipe.targets == (CUDA,):
                raise
            noted["without a CPU target"] = str(error)
            report = compile_model(
                ModelDir.open(model), out, CompileOptions(targets=(CUDA,), **recipe.options)
            )
    return {"seconds": round(report.seconds, 2), **noted, **described(out)}


def described(path: Path) -> Values:
    """The targets of an artifact, its size, and what built its binaries."""
    manifest = Artifact.open(path).manifest
    nbytes = sum(file.size for file in manifest.files.values())
    found = {"targets": [t.name for t in manifest.targets], "gigabytes": round(nbytes / 1e9, 3)}
    try:
        built = built_of(Artifact.open(path, device="cuda"))
    except IngotError:  # the part that opens it says why
        return found
    return {**found, "kernels": len(built.binaries), **dict(built.built_with)}


def main(argv: list[str] | None = None) -> None:
    """Compiles one artifact, and prints what came of it as the last line."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.artifacts")
    parser.add_argument("work", type=Path)
    parser.add_argument("name", choices=RECIPES)
    args = parser.parse_args(argv)
    found = compiled(args.work, args.name)
    print(json.dumps(found), flush=True)
    os._exit(0)  # torch takes seconds to leave


if __name__ == "__main__":
    main()
