"""One layer from its export to its kernels, and the parts of a plan that are of a layer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ingot.artifact.plan import Group, Plan
from ingot.cli.artifact_view import kernels_of, layer_of
from ingot.cli.layer_view import InstructionView, PassView, layer_views, ranges
from tests.cli.sample_artifact import sample_layers, sample_manifest, sample_plan


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
