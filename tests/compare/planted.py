"""Artifacts with one fault in them: in the packed weights, in a pass, or in a kernel."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from pathlib import Path

import numpy as np
import pytest
from torch.fx import GraphModule

from ingot.artifact.reader import Artifact, weights_name
from ingot.artifact.writer import ArtifactWriter
from ingot.compare.bisect import Finding
from ingot.compare.bisect_sides import Bisection, bisect
from ingot.compare.sides import open_side
from ingot.compiler import compile as compiler
from ingot.compiler.lower_model import lower_model
from ingot.passes import pipeline
from ingot.passes.graph import arguments, op_calls, origin, set_arguments
from ingot.targets.cpu import toolchain
from tests.support.tiny_models import WINDOW

Bytes = np.ndarray
LAYER = "model.layers.1"
PROMPTS = [[(7 * i) % 320 for i in range(WINDOW + 13)], [3], [(11 * i) % 320 for i in range(17)]]


def bisected(
    artifact: Path, other: Path | str, prompts: Sequence[Sequence[int]] = PROMPTS
) -> Bisection:
    one = open_side(str(artifact))
    side = open_side(str(other), max_model_len=64)
    try:
        found, *_ = bisect(one, side, prompts)
        return found
    finally:
        one.close()
        side.close()


def first(artifact: Path, model: Path) -> Finding:
    """The answer; what follows from no other fault is alone."""
    found = bisected(artifact, model).found
    assert found, "the fault is not found"
    return found[0].finding


def with_weight(source: Path, out: Path, name: str, change: Callable[[Bytes], None]) -> Path:
    """A copy of an artifact with other bytes in a packed weight, its hashes signed anew."""
    old = Artifact.open(source, flags=frozenset())
    (entry,) = old.manifest.targets
    fd, header = old.open_weights(entry.layout)
    place = header.tensors[name]
    with open(fd, "rb"), ArtifactWriter(out) as writer:
        for file in old.manifest.files:
            shutil.copyfile(old.path / file, writer.file(file))
        data = np.memmap(writer.directory / weights_name(entry.layout), np.uint8, "r+")
        change(data[place.offset : place.offset + place.nbytes])
        data.flush()
        writer.seal(replace(old.manifest, files={}, digest=""))
        writer.publish()
    return out


@contextmanager
def faulty_pass(name: str, spoil: Callable[[GraphModule], None]) -> Iterator[None]:
    """Meanwhile the pass of that name does something more to the graph."""

    def spoilt(each: pipeline.Pass) -> pipeline.Pass:
        @wraps(each.function)
        def function(gm: GraphModule) -> int:
            count = each.function(gm)
            spoil(gm)
            return count

        return replace(each, function=function) if each.name == name else each

    with pytest.MonkeyPatch.context() as patch:
        passes = {n: tuple(map(spoilt, each)) for n, each in pipeline.PIPELINES.items()}
        patch.setattr(pipeline, "PIPELINES", passes)
        patch.setattr(compiler, "front_of", lower_model)  # not what was kept of a good compile
        yield


@contextmanager
def faulty_kernels(folder: Path, header: str, old: str, new: str) -> Iterator[None]:
    """Meanwhile kernels are compiled from headers, copied into the folder, that say `new`."""
    shutil.copytree(toolchain.KERNELS, folder)
    text = (folder / header).read_text()
    assert old in text
    (folder / header).write_text(text.replace(old, new))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toolchain, "KERNELS", folder)
        yield


def wrong_epsilon(gm: GraphModule) -> None:
    """In one norm; to be done after fuse_rms_norm."""
    module = f"{LAYER}.post_attention_layernorm"
    (norm,) = (node for node in op_calls(gm, "rms_norm") if origin(node) == module)
    set_arguments(norm, eps=0.01)


def window_off_by_one(gm: GraphModule) -> None:
    """In every layer that has one; to be done after rewrite_attention."""
    for node in op_calls(gm, "paged_attention"):
        if window := arguments(node)["window"]:
            set_arguments(node, window=window + 1)


def gate_and_up_swapped(gm: GraphModule) -> None:
    """In every layer; to be done after fuse_gates."""
    for node in op_calls(gm, "gate"):
        given = arguments(node)
        set_arguments(node, gate=given["up"], up=given["gate"])
