"""Planted faults in artifacts of models of whole texts are named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from torch.fx import GraphModule

from ingot.cli.main import main
from ingot.compare.bisect import Finding
from ingot.compare.bisect_sides import blame
from ingot.compare.reproducer import reproduce
from ingot.compiler.compile import compile_model
from ingot.compiler.options import CompileOptions
from ingot.models.model_dir import ModelDir
from ingot.passes.graph import op_calls, origin, set_arguments
from tests.compare.planted import Bytes, bisected, faulty_kernels, faulty_pass, with_weight
from tests.support.core import core
from tests.support.text_models import KINDS, TEXTS, colbert_dir, saved, with_modules


def compiled(model: Path, out: Path, **options: str) -> Path:
    given = CompileOptions(targets=("cpu:portable",), max_num_batched_tokens=64, **options)  # type: ignore[arg-type]
    compile_model(ModelDir.open(model), out, given)
    return out


def first(artifact: Path, model: Path) -> Finding:
    """The answer, by texts of which not all fit into a step."""
    found = bisected(artifact, model, [*TEXTS, [7] * 30]).found
    assert found, "the fault is not found"
    return found[0].finding


def flip(raw: Bytes) -> None:
    raw[:512] ^= 0x55


def test_a_damaged_weight(embedder_artifact: Path, tmp_path: Path) -> None:
    weight = "model.layers.1.mlp.down_proj.weight"
    damaged = with_weight(embedder_artifact, tmp_path / "a", weight, flip)
    found = first(damaged, embedder_artifact.parent / "model")
    assert (found.where, found.op) == ("weights", "linear")
    assert found.origin == weight.removesuffix(".weight") and weight in found.note


def test_an_artifact_without_a_fault(
    embedder_artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = embedder_artifact.parent / "model"
    assert main(["compare", str(embedder_artifact), str(model), "--bisect"]) == 0
    out = capsys.readouterr().out
    assert "No fault:" in out and "model.layers.2" in out.partition("after")[2]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "kind",
    core(
        *("bert/cls/lasttoken", "modernbert", "deberta v3", "labels", "tokens"),
        slow=["bert/cls", "bert/max/mean/weightedmean", "gemma3", "mpnet", "jina v3"],
        further=[],
    ),
)
def test_models_of_other_kinds_without_a_fault(kind: str, tmp_path: Path) -> None:
    name, *pooling = kind.split("/")
    if kind == "labels":
        model = saved(KINDS["roberta"].build("ForSequenceClassification"), tmp_path / "model")
    elif kind == "tokens":
        model = colbert_dir(tmp_path / "model")
    else:
        model = with_modules(saved(KINDS[name].build("Model"), tmp_path / "model"), *pooling)
    found = bisected(compiled(model, tmp_path / "a", dtype="bfloat16"), model, TEXTS)
    assert not found.found and not found.notes
    assert 1e-6 < max(each.relative for each in found.layers.values()) < 2e-2


def other_epsilon(gm: GraphModule) -> None:
    """In one norm; to be done after fuse_layer_norm."""
    module = "model.layers.1.post_feedforward_layernorm"
    (norm,) = (node for node in op_calls(gm, "layer_norm") if origin(node) == module)
    set_arguments(norm, eps=0.01)


def other_pooling(gm: GraphModule) -> None:
    """To be done after rewrite_attention."""
    (pool,) = op_calls(gm, "pool")
    set_arguments(pool, how="max")


MEAN = "return static_cast<float>(count);"  # of rows, which a sum is divided by
Spoil = Callable[[GraphModule], None]
PASSES: dict[str, tuple[str, Spoil, str]] = {
    "norm": ("fuse_layer_norm", other_epsilon, "model.layers.1.post_feedforward_layernorm"),
    "pooling": ("rewrite_attention", other_pooling, "pool"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", PASSES)
def test_a_faulty_pass(name: str, embedder_artifact: Path, tmp_path: Path) -> None:
    blamed, spoil, module = PASSES[name]
    with faulty_pass(blamed, spoil):
        artifact = compiled(embedder_artifact.parent / "model", tmp_path / "a", dtype="float32")
        found = first(artifact, embedder_artifact.parent / "model")
    assert (found.where, found.origin) == ("plan", module)
    assert blamed in found.made_by


@pytest.mark.thorough
def test_a_faulty_kernel(embedder_artifact: Path, tmp_path: Path) -> None:
    model = embedder_artifact.parent / "model"
    with faulty_kernels(tmp_path / "kernels", "gather.h", MEAN, MEAN.replace("count", "count + 1")):
        artifact = compiled(model, tmp_path / "a", dtype="float32")
    found = first(artifact, model)
    assert (found.where, found.op, found.origin) == ("kernel", "pool", "pool")
    argv = ["compare", str(artifact), str(model), "--bisect", "--save", str(tmp_path / "fault")]
    assert main(argv) == 4 and (tmp_path / "fault" / "reproduce.py").exists()
    assert reproduce(tmp_path / "fault") == 1
    assert "of pool, made by" in blame(artifact, model)
    assert np.load(tmp_path / "fault" / "expected" / "vectors.npy").shape[1] == 60
