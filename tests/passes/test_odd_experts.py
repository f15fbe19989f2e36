"""Families with experts at odd sizes: all passes match as often as their blocks say."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from ingot.compiler.export import export
from ingot.errors import PassError
from ingot.models import registry
from ingot.models.counts import module_counts
from ingot.passes.pipeline import pipeline
from ingot.passes.runner import run
from tests.support.core import core
from tests.support.tiny_models import MOE

torch.set_num_threads(1)
# Of the inner sizes, one divides 64 and none the others.
SIZES = st.fixed_dictionaries(
    {
        "vocab_size": st.sampled_from([257, 300]),
        "hidden_size": st.sampled_from([44, 60, 76]),
        "intermediate_size": st.sampled_from([20, 52, 128]),
        "moe_intermediate_size": st.sampled_from([12, 36, 64]),
        "num_hidden_layers": st.sampled_from([1, 2]),
        "bos_token_id": st.just(1),
        "eos_token_id": st.just(2),
    }
)
BFLOAT16 = pipeline(dtype="bfloat16")


def config_of(name: str, sizes: dict[str, Any]) -> Any:
    """A case in other sizes; keys that the family does not have stay away."""
    made: transformers.PreTrainedConfig = MOE[name]()
    values = made.to_dict()
    values |= {key: size for key, size in sizes.items() if key in values}
    values |= {"layer_types": None, "architectures": [f"{type(made).__name__[:-6]}ForCausalLM"]}
    return registry.parse_config({k: v for k, v in values.items() if v is not None})


@pytest.mark.parametrize("name", core(further=["qwen2moe"], slow=MOE))
@settings(max_examples=2, deadline=None, derandomize=True)
@given(sizes=SIZES)
def test_passes_match_as_often_as_blocks_say(name: str, sizes: dict[str, Any]) -> None:
    config = config_of(name, sizes)
    module = registry.build(config, max_model_len=64)
    run(export(module, config), BFLOAT16, module_counts(module), verify=True)


def test_routers_stay_float32_and_by_themselves() -> None:
    config = config_of("qwen2moe", {})
    module = registry.build(config, max_model_len=64)
    gm = export(module, config)
    run(gm, BFLOAT16, module_counts(module))
    weights = {str(n.target): n.meta["val"].dtype for n in gm.graph.find_nodes(op="get_attr")}
    routers = {name for name in weights if "gate.weight" in name}
    assert len(routers) == 4  # of each layer that of the experts, and that of the shared one
    assert {weights[name] for name in routers} == {torch.float32}
    assert weights["model.layers.0.mlp.experts.down_proj"] == torch.bfloat16


def test_a_block_that_says_too_much_is_found() -> None:
    config = config_of("mixtral", {})
    module = registry.build(config, max_model_len=64)
    counts = module_counts(module)
    counts["experts"] += 1
    with pytest.raises(PassError, match="experts"):
        run(export(module, config), BFLOAT16, counts)
