"""One layer from its export to its kernels, and the parts of a plan that are of a layer."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from ingot.artifact.plan import Group, Plan
from ingot.cli.inspect.layers import InstructionView, PassView, layer_views, ranges
from ingot.cli.inspect.view import kernels_of, layer_of, read_artifact
from ingot.cli.main import main
from tests.cli.sample_artifact import sample_layers, sample_manifest, sample_plan, write_sample


def layered() -> Plan:
    """The sample: its norm is in layer 3, its product too, and they are one kernel."""
    plan = sample_plan()
    lookup, norm, product = plan.instructions
    buffers = tuple(replace(b, kind="inner") if b.name == "%1<b>" else b for b in plan.buffers)
    inside = (replace(norm, origin="m.layers.3.norm"), replace(product, origin="m.layers.3.mlp"))
    return replace(
        plan, buffers=buffers, instructions=(lookup, *inside),
        groups=(Group(kernel="both", first=1, count=2),),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("origin", "layer"),
    [
        ("model.layers.3.mlp", 3),
        ("h.12", 12),
        ("layers.1.experts.7.up", 1),
        ("0", 0),
        ("model.norm", None),
        ("layer3.x4", None),
        ("", None),
    ],
)
def test_the_layer_is_the_first_number_of_an_origin(origin: str, layer: int | None) -> None:
    assert layer_of(origin) == layer


def test_the_kernels_of_a_layer_keep_their_numbers() -> None:
    plan = layered()
    assert kernels_of(plan, 3) == [(1, plan.groups[0])]
    assert kernels_of(plan, 2) == []
    assert [number for number, _ in kernels_of(plan, None)] == [0, 1]


@pytest.mark.parametrize(
    ("numbers", "text"),
    [((0,), "0"), ((0, 1, 2, 3), "0 to 3"), ((1, 3, 4, 9), "1, 3 to 4, 9"), ((), "")],
)
def test_layers_that_follow_each_other_are_a_range(numbers: tuple[int, ...], text: str) -> None:
    assert ranges(numbers) == text


def test_a_layer_has_its_passes_its_graphs_and_its_groups() -> None:
    graphs = sample_layers()
    graphs = replace(graphs, layers=(replace(graphs.layers[0], layer="m.layers.3", alike=(3, 4)),))
    (view,) = layer_views(graphs, sample_manifest().ledger, layered())
    assert (view.layer, view.alike) == ("m.layers.3", "3 to 4")
    assert view.passes == (
        PassView(name="export", tier="", matched=None, changed=True),
        PassView(name="canonicalize", tier="exact", matched=5, changed=False),
        PassView(name="fuse_rms_norm", tier="exact", matched=1, changed=True),
    )
    assert view.stages == graphs.layers[0].stages
    (group,) = view.groups
    assert (group.number, group.kernel, group.origin) == (1, "both", "m.layers.3.mlp")
    norm, product = group.instructions
    assert norm == InstructionView(
        op="rms_norm", outputs=(("%1<b>", "float32[N,8]"),), inputs=("%0", "norm.weight"),
        attrs="eps=1e-06", inner=True,
    )  # fmt: skip
    assert (product.op, product.inner) == ("linear", False)


def test_an_artifact_keeps_the_graphs_of_its_layers(shakespeare_artifact: Path) -> None:
    """The last graph of a layer makes what the instructions of the plan make."""
    view = read_artifact(shakespeare_artifact)
    plan = next(iter(view.plans.values()))
    assert view.layers is not None
    (layer,) = view.layers.layers
    assert (layer.layer, layer.alike) == ("model.layers.0", tuple(range(6)))
    *_, (name, lines) = layer.graphs()
    assert name == "lower_dtypes"
    made = {match[1] for line in lines if (match := re.search(r"(\S+) = ", line))}
    members = [i for _, group in kernels_of(plan, 0) for i in plan.members(group)]
    assert len(members) > 12
    assert {n for i in members for n in i.outputs.values()} <= made
    assert (view.path / "passes" / "layers.json").stat().st_size < 30_000


def test_a_damaged_file_of_graphs_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = write_sample(tmp_path / "sample.ingot", sample_layers())
    file = sample / "passes" / "layers.json"
    file.write_text(file.read_text().replace("aten", "meta"))
    assert main(["inspect", str(sample)]) == 3
    assert "passes/layers.json: its hash is not the manifest's" in capsys.readouterr().err
