"""Lowering: the plan, run word for word by the interpreter, against the float32 reference."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ingot.artifact.codec import decode_plan, encode_plan
from ingot.artifact.formats import Format, Storage, rounded_rows
from ingot.artifact.plan import Plan
from ingot.artifact.programs import STEP
from ingot.artifact.traits import TRAITS
from ingot.compiler.lower import lower
from ingot.compiler.quantization.choose import choose_storage
from ingot.compiler.quantization.graph_matrices import matrices_in
from ingot.compiler.quantization.search import quantize_rows
from ingot.compiler.reference import reference_logits
from ingot.errors import CodegenError, InternalError, UsageError
from ingot.models.checkpoints.checkpoint import Checkpoint
from ingot.passes.graph import op_calls
from ingot.passes.pipeline import optional_passes
from tests.compiler.plans import (
    LIMITS,
    PROMPTS,
    final_graph,
    graph,
    largest_error,
    plan_for,
    step_by_step,
)
from tests.support.core import core

torch.set_num_threads(1)

QKV = "model.layers.0.self_attn.q_k_v_proj.weight"
TABLE = "model.embed_tokens.weight"
DOWN = "model.layers.2.mlp.down_proj.weight"


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def plan(request: pytest.FixtureRequest) -> Plan:
    return plan_for(request.param)


@pytest.mark.cases(core=1)
def test_the_plan_computes_the_model(plan: Plan, checkpoint: Checkpoint, reference) -> None:
    limit = 1e-5 if plan.kv_dtype == "float32" else 3e-2
    assert largest_error(step_by_step(plan, checkpoint.read), reference) <= limit


def test_the_plan_without_optional_passes_computes_the_same(checkpoint, reference) -> None:
    plan = plan_for(disable=optional_passes())
    assert largest_error(step_by_step(plan, checkpoint.read), reference) <= 1e-5


@pytest.mark.parametrize(
    "storage, dtype",
    core((Storage(4, 32), "float32"), further=[(Storage(8, 0), "bfloat16")]),
)
def test_weights_in_integers_stand_for_their_numbers(storage, dtype, checkpoint) -> None:
    chosen = choose_storage(matrices_in(graph()), storage, (), dtype)

    def read(name: str) -> Tensor:
        weight = checkpoint.read(name)
        if name not in chosen:
            return weight
        return quantize_rows(weight, chosen[name].of(weight.shape[1])).dequantize()

    got = step_by_step(plan_for(dtype, storage=chosen), checkpoint.read)
    expected = reference_logits(graph(), read, PROMPTS)
    # What is multiplied with integers is not narrowed, keys and values are.
    assert largest_error(got, expected) <= (1e-5 if dtype == "float32" else 3e-2)


def test_int8_states_cost_little_and_something(checkpoint, reference) -> None:
    plan = plan_for(int8_states=True)
    assert 1e-4 < largest_error(step_by_step(plan, checkpoint.read), reference) < 2e-2


def test_formats_are_on_buffers() -> None:
    chosen = choose_storage(
        matrices_in(graph()), Storage(4, 64), ("layers.2.mlp.*=bf16",), "bfloat16"
    )
    plan = plan_for("bfloat16", storage=chosen, int8_states=True)
    assert plan.buffer(TABLE).format == Storage(8, 64).of(256)
    assert plan.buffer(QKV).format == Storage(4, 64).of(256)
    assert plan.buffer(DOWN).format == Format("bfloat16")
    assert plan.buffer("model.norm.weight").format == Format("float32")
    assert {state.format for state in plan.spec.states} == {rounded_rows(64)}
    ours = {b.format for b in plan.of_kind("arena")}
    assert ours == {Format("float32"), Format("bfloat16")}  # targets round to integers
    plain = plan_for("bfloat16")
    assert {state.format for state in plain.spec.states} == {Format("bfloat16")}
    assert [i.op for i in plain.instructions] == [i.op for i in plan.instructions]


def test_the_interface_is_the_steps(plan: Plan) -> None:
    assert plan.spec.inputs == STEP.inputs_for("paged")
    assert [(s.name, s.kind, s.record) for s in plan.spec.states[:2]] == [
        ("k_cache_0", "paged", (2, 64)),
        ("v_cache_0", "paged", (2, 64)),
    ]
    (logits,) = plan.spec.outputs
    assert (logits.name, logits.dtype, logits.shape) == ("logits", "float32", ("R", 2048))
    assert {i.op for i in plan.instructions} <= TRAITS.keys()


def test_states_are_what_the_graph_says_of_them() -> None:
    gm = final_graph()
    states = gm.meta["states"]
    states["v_cache_3"] = replace(states["v_cache_3"], window=9)
    found = {s.name: s.window for s in lower(gm, LIMITS).spec.states}
    assert found.pop("v_cache_3") == 9
    assert set(found.values()) == {0}


def test_an_unknown_input_is_refused() -> None:
    gm = final_graph()
    del gm.meta["states"]["k_cache_2"]
    with pytest.raises(InternalError, match="input k_cache_2 that the program step is not given"):
        lower(gm, LIMITS)


def test_views_are_no_instructions(plan: Plan) -> None:
    """Queries, keys and values are columns of one product, heads of which rows lie apart."""
    views = {b.name: b for b in plan.of_kind("view")}
    assert views
    (first, *_) = (i for i in plan.instructions if TRAITS[i.op].mutates)
    v = views[first.inputs["v"]]
    assert (v.offset, v.row_stride, v.shape) == (384, 512, ("N", 2, 64))
    assert plan.root(v.name).columns == 512
    q, k = (b for b in views.values() if b.base == v.base and b.name != v.name)
    assert (q.offset, q.shape, k.offset, k.shape) == (0, ("N", 4, 64), 256, ("N", 2, 64))


def test_rows_that_want_logits_are_rows_of_what_follows(plan: Plan) -> None:
    rows = [plan.buffer(b.name).shape[0] for b in plan.of_kind("arena")]
    assert rows == sorted(rows) and set(rows) == {"N", "R"}  # N first, then R
    select = [i for i in plan.instructions if "rows" in i.inputs]
    assert len(select) == 2 and {i.inputs["rows"] for i in select} == {"logit_rows"}


def test_parts_of_one_matrix_that_are_stored_in_different_ways_are_refused() -> None:
    gm = final_graph()
    q, k, v = (f"model.layers.0.self_attn.{x}_proj.weight" for x in "qkv")
    storage = {q: Storage(4, 32), k: Storage(8, 32)}
    with pytest.raises(UsageError) as caught:
        lower(gm, LIMITS, storage)
    assert caught.value.found == (
        f"{QKV} is one matrix, but its parts would be stored in different ways: "
        f"{q} int4-g32, {k} int8-g32, {v} not"
    )
    assert "--disable-pass merge_linears" in caught.value.hint
    same = dict.fromkeys((q, k, v), Storage(4, 32))
    assert lower(gm, LIMITS, same).buffer(QKV).format == Storage(4, 32).of(256)


@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.9.mlp.up_proj.weight"])
def test_what_cannot_be_stored_in_integers_is_refused(name: str) -> None:
    with pytest.raises(InternalError, match=f"{name} is no matrix"):
        lower(final_graph(), LIMITS, {name: Storage(8, 32)})


def test_a_matrix_that_something_else_reads_is_not_stored_in_integers() -> None:
    gm = final_graph()
    node = op_calls(gm, "linear")[1]
    weight = node.args[1]
    with gm.graph.inserting_after(node):
        other = gm.graph.call_function(torch.ops.ingot.add.default, (node, weight))
    other.meta = dict(node.meta)
    node.replace_all_uses_with(other, delete_user_cb=lambda user: user is not other)
    assert lower(gm, LIMITS).buffer(weight.target).format == Format("float32")
    with pytest.raises(InternalError, match=f"{weight.target} is no matrix"):
        lower(gm, LIMITS, {weight.target: Storage(8, 32)})


@pytest.mark.cases(core=1)
def test_plans_survive_json_and_repeat(plan: Plan) -> None:
    assert decode_plan(encode_plan(plan)) == plan
    assert encode_plan(lower(final_graph(plan.kv_dtype, fresh=True), LIMITS)) == encode_plan(plan)


def test_every_instruction_says_where_it_comes_from(plan: Plan) -> None:
    origins = [i.origin for i in plan.instructions]
    assert all(origins)
    assert "model.layers.5.mlp.down_proj" in origins


def test_merged_weights_name_their_sources(plan: Plan) -> None:
    attention = "model.layers.0.self_attn"
    weight = plan.buffer(QKV)
    assert weight.sources == tuple(f"{attention}.{p}_proj.weight" for p in "qkv")
    assert weight.shape == (512, 256)


def test_an_unknown_operation_is_refused_by_name() -> None:
    gm = final_graph()
    node = next(n for n in gm.graph.nodes if n.name == "linear_6")
    with gm.graph.inserting_after(node):
        relu = gm.graph.call_function(torch.ops.aten.relu.default, (node,))
    relu.meta = dict(node.meta)
    node.replace_all_uses_with(relu, delete_user_cb=lambda user: user is not relu)
    with pytest.raises(CodegenError, match=r"relu.*layers\.0\.mlp"):
        lower(gm, LIMITS)


def test_a_result_that_is_a_view_is_refused() -> None:
    gm = final_graph()
    (head,) = gm.graph.output_node().all_input_nodes
    with gm.graph.inserting_after(head):
        part = gm.graph.call_function(torch.ops.aten.slice.Tensor, (head, 2, 0, 100))
    part.meta = dict(head.meta) | {"val": head.meta["val"][..., :100]}
    gm.graph.output_node().args = (part,)
    with pytest.raises(InternalError, match="no operation of the graph has logits"):
        lower(gm, LIMITS)


@pytest.mark.parametrize(
    ("target", "given"),
    [(torch.ops.aten.slice.Tensor, (1, 0, 3)), (torch.ops.aten.transpose.int, (1, 2))],
)
def test_what_moves_rows_is_no_view(target, given) -> None:
    gm = final_graph()
    node = next(n for n in gm.graph.nodes if n.name == "linear_6")
    with gm.graph.inserting_after(node):
        moved = gm.graph.call_function(target, (node, *given))
    moved.meta = dict(node.meta)
    node.replace_all_uses_with(moved, delete_user_cb=lambda user: user is not moved)
    with pytest.raises(CodegenError, match=target._schema.name.split("::")[1]) as caught:
        lower(gm, LIMITS)
    assert caught.value.found.startswith(f"operation {target} at model.layers.")


def test_an_instruction_says_what_it_was_given_and_nothing_else(plan: Plan) -> None:
    """No dtypes, which buffers have, and nothing that was left out."""
    given = {i.op: i.attrs for i in plan.instructions}
    assert given["linear"] == given["add"] == given["embedding"] == given["kv_write"] == {}
    assert given["paged_attention"] == {
        "scale": 0.125,
        "window": 0,
        "softcap": 0.0,
        "value_size": 0,
        "rounds_queries": False,
    }
    assert given["rope"] == {"interleaved": False}
    assert given["gate"] == {"kind": "silu"}
    named = {i.op: (set(i.inputs), set(i.outputs)) for i in plan.instructions}
    assert named["linear"] == ({"x", "weight"}, {"out"}) and named["kv_write"][1] == set()


def test_only_what_instructions_name_has_a_buffer(plan: Plan) -> None:
    named = {n for i in plan.instructions for n in (*i.inputs.values(), *i.outputs.values())}
    below = {b.base for b in plan.of_kind("view")}
    assert {b.name for b in plan.buffers} <= named | below
    assert plan.instructions[-1].outputs == {"out": "logits"}
    dense = [b for b in plan.of_kind("view") if b.row_stride == plan.root(b.name).columns]
    assert len(dense) == len(plan.of_kind("view")) and all(b.base for b in dense)
