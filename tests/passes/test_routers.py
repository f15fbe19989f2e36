"""Routers of experts: in float32, and never one matrix with others."""

from __future__ import annotations

import torch

from ingot.compiler.export import export
from ingot.models import registry
from ingot.models.counts import module_counts
from ingot.passes.pipeline import pipeline
from ingot.passes.runner import run
from tests.support.odd_sizes import architecture
from tests.support.tiny_models import MOE


def test_routers_stay_float32_and_by_themselves() -> None:
    made = MOE["qwen2moe"]()
    config = registry.parse_config(made.to_dict() | {"architectures": [architecture(made)]})
    module = registry.build(config, max_model_len=64)
    gm = export(module, config)
    run(gm, pipeline(dtype="bfloat16"), module_counts(module))
    weights = {str(n.target): n.meta["val"].dtype for n in gm.graph.find_nodes(op="get_attr")}
    routers = {name for name in weights if "gate.weight" in name}
    assert len(routers) == 4  # of each layer that of the experts, and that of the shared one
    assert {weights[name] for name in routers} == {torch.float32}
    assert weights["model.layers.0.mlp.experts.down_proj"] == torch.bfloat16
