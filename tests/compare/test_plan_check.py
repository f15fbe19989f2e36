"""What passes did to a model shows against the model, in float32, at the instruction."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch.fx import GraphModule

from ingot.artifact.formats import Storage
from ingot.artifact.manifest import LedgerEntry, Manifest, ModelInfo, Numerics
from ingot.artifact.plan import Plan
from ingot.artifact.target import Target
from ingot.compare.makers import makers_of
from ingot.compare.model_values import model_values
from ingot.compare.plan_check import PlanValues, Strayed, leads_to_confirmed, strayed
from ingot.compare.steps import steps_of
from ingot.compare.stored import sources_of
from ingot.compiler.lower import lower
from ingot.passes.graph import arguments, op_calls, set_arguments
from ingot.passes.pipeline import PIPELINE, pipeline
from ingot.passes.runner import apply
from ingot.passes.verification import DrawnWeights
from ingot.targets.cpu.kind import KIND
from tests.compare.planted import gate_and_up_swapped, window_off_by_one, wrong_epsilon
from tests.compiler.tiny import LIMITS, tiny
from tests.support.core import core
from tests.targets.sketch import Sketch

PROMPTS = [[(7 * i) % 80 for i in range(11)], [3, 1, 4, 1]]
Spoil = Callable[[GraphModule], None]


def check(plan: Plan) -> Strayed | None:
    """The first instruction of a plan of the tiny model that does not compute what that does."""
    reference = tiny().reference
    read = DrawnWeights(reference).read
    steps = steps_of(PROMPTS, plan.limits)
    values = PlanValues.of(
        plan,
        lambda buffer: torch.cat([read(name) for name in sources_of(buffer)]),
        steps.whole,
        steps.num_pages,
    )
    return strayed(values, model_values(reference, read, steps.prompts))


def plan_with(after: str, spoil: Spoil) -> Plan:
    """The tiny model's plan, where something more is done to the graph after a pass."""
    reference = tiny().reference
    gm = GraphModule(reference, deepcopy(reference.graph))
    for each in pipeline():
        apply(gm, each)
        if each.name == after:
            spoil(gm)
    return lower(gm, LIMITS)


def keys_not_turned(gm: GraphModule) -> None:
    node = op_calls(gm, "rope")[1]
    node.replace_all_uses_with(arguments(node)["x"])


def other_scale(gm: GraphModule) -> None:
    for node in op_calls(gm, "rope_table"):
        set_arguments(node, scale=1.01)


def keys_for_values(gm: GraphModule) -> None:
    node = op_calls(gm, "kv_write")[1]
    set_arguments(node, v=arguments(node)["k"])


FAULTS: dict[str, tuple[str, Spoil, str, str]] = {
    "eps": (
        "fuse_rms_norm", wrong_epsilon, "model.layers.1.post_attention_layernorm", "rms_norm"
    ),
    "window": (
        "rewrite_attention", window_off_by_one, "model.layers.1.self_attn", "paged_attention"
    ),
    "gate": ("fuse_gates", gate_and_up_swapped, "model.layers.0.mlp", "gate"),
    "rotary": ("fuse_rope", keys_not_turned, "model.layers.0.self_attn", "paged_attention"),
    "table": ("fuse_rope_table", other_scale, "model.rotary_emb", "rope_table"),
    "values": ("rewrite_attention", keys_for_values, "model.layers.1.self_attn", "paged_attention"),
}  # fmt: skip


@pytest.mark.parametrize("name", core("eps", "window", "gate", further=FAULTS))
def test_the_instruction_of_a_faulty_pass_is_named(name: str) -> None:
    after, spoil, origin, op = FAULTS[name]
    plan = plan_with(after, spoil)
    found = check(plan)
    assert found is not None
    assert (plan.instructions[found.index].origin, plan.instructions[found.index].op) == (
        origin,
        op,
    )
    assert found.difference.is_beyond or found.difference.relative > 2e-4


STORED: dict[str, dict[str, object]] = {
    "float32": {},
    "bfloat16": {"dtype": "bfloat16"},
    "int4": {"storage": Storage(4, 32)},
    "int8 states": {"int8_states": True},
}


@pytest.mark.cases(thorough=1)
@pytest.mark.parametrize("name", core("int4", further=STORED))
def test_whatever_numbers_are_stored_in_a_right_plan_strays_nowhere(name: str) -> None:
    plan = KIND.place(KIND.group(KIND.rewrite(tiny(**STORED[name]).plan))[0])  # type: ignore[arg-type]
    assert check(plan) is None


@pytest.mark.parametrize(
    ("second", "third", "leads"),
    [(None, True, True), (None, False, False), (False, True, False), (True, False, True)],
)
def test_what_leads_to_a_confirmed_result_is_spelled_otherwise(
    second: bool | None, third: bool | None, leads: bool
) -> None:
    """Of three sums in turn, the first is no value of the model; False is another that is none."""
    s = Sketch()
    name = s.rows("x", 4)
    for out in ("first", "second", "third"):
        name = s.call("add", name, name, out=out, shape=(4,))
    assert leads_to_confirmed(s.plan(), [False, second, third], 0) is leads


def manifest(dtype: str) -> Manifest:
    """As far as the passes need it."""
    ledger = [LedgerEntry(name=p.name, tier=p.tier, expected=None, matched=0) for p in PIPELINE]
    model = ModelInfo(
        name="tiny", architecture="T", vocab_size=80, num_layers=2, num_parameters=0,
        bos_token_ids=(1,), eos_token_ids=(2,), kv_bytes_per_token=0,
    )  # fmt: skip
    return Manifest(
        format=(2, 0),
        ingot_version="0",
        model=model,
        limits=LIMITS,
        numerics=Numerics(dtype=dtype, quantization="none", tolerance=0.0),
        targets=(),
        ledger=tuple(ledger),
    )


def test_the_passes_and_the_rules_that_made_things_are_named() -> None:
    made = tiny("bfloat16")
    graph = GraphModule(made.reference, deepcopy(made.reference.graph))
    grouped, _ = KIND.group(KIND.rewrite(made.plan))
    makers = makers_of(graph, manifest("bfloat16"), grouped, Target("cpu", "portable"))
    by = {
        (i.origin, i.op): makers.of(i, "the rewriting").partition(",")[0]
        for i in grouped.instructions
    }
    layer = "model.layers.0"
    assert by[f"{layer}.input_layernorm", "rms_norm"] == "fuse_rms_norm"
    assert by[f"{layer}.self_attn", "linear"] == "merge_linears"
    assert by[f"{layer}.self_attn", "rope"] == "fuse_rope"
    assert by[f"{layer}.self_attn", "kv_write"] == "rewrite_attention"
    assert by[f"{layer}.mlp", "gate"] == "fuse_gates"
    rules = {g.kernel: makers.rule(grouped.members(g)) for g in grouped.kernels if g.count > 1}
    assert rules["linear_add"] == "group_residuals"
    assert rules["gated_linear"] == "group_gates"
    assert rules["rope_kv_write"] == "group_heads"
    assert all(
        makers.fresh[next(iter(i.outputs.values()))] for i in grouped.instructions if i.outputs
    )
