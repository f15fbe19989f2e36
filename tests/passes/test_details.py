"""What single passes must get right beyond firing."""

import pytest
import torch

from ingot.errors import PassError
from ingot.passes.dump import op_counts
from ingot.passes.graph import arguments, op_calls, origin, value
from ingot.passes.inputs import STEP_INPUTS
from ingot.passes.merge_linears import stacked_name
from ingot.passes.numerics import Checker
from ingot.passes.runner import run
from tests.passes import cases
from tests.passes.support import HEAD, TARGET, Facts, attend, before, flat, heads, lab, step

torch.set_num_threads(1)
ops = torch.ops.ingot


def after(body, name):
    gm = before(lab(body), name)
    run(gm, [step(name)], Facts(), target=TARGET, verify=True)
    return gm


def test_only_adds_of_one_shape_become_residual_adds():
    gm = after(cases.no_residual, "canonicalize_ops")
    assert op_counts(gm)["add"] == 0 and op_counts(gm)["aten.add"] == 2


def test_epsilon_and_offset_are_captured():
    gm = after(cases.norms, "fuse_rms_norm")
    found = {(arguments(n)["eps"], arguments(n)["offset"]) for n in op_calls(gm, "rms_norm")}
    assert found == {(0.25, 0.0), (1e-3, 0.0), (1e-5, 1.5), (1e-5, 0.0), (1e-2, 0.0)}


def test_scale_of_the_table_is_captured():
    gm = after(cases.tables, "fuse_rope_table")
    assert [arguments(n)["scale"] for n in op_calls(gm, "rope_table")] == [1.3, 1.0]


def test_pattern_does_not_overlook_an_option():
    gm = after(cases.geglu, "fuse_gelu_mul")
    assert [arguments(n)["tanh"] for n in op_calls(gm, "gelu_mul")] == [False, True]


def test_attention_reads_shared_heads_and_its_scale():
    gm = after(cases.attended, "fuse_attention")
    found = [
        (value(arguments(n)["k"]).shape[2], arguments(n)["scale"])
        for n in op_calls(gm, "attention")
    ]
    assert found == [(1, HEAD**-0.5), (1, 0.2)]


def test_other_readers_keep_the_sum():
    gm = after(cases.normed_sums, "fuse_add_rms_norm")
    first, second = op_calls(gm, "add_rms_norm")
    residual = arguments(second)["residual"]
    assert residual.args == (first, 1)
    assert arguments(second)["eps"] == 1e-5 and arguments(second)["offset"] == 1.0


def test_parallel_branches_share_one_sum():
    def body(lab, x, positions):
        total = lab.q(x) + x
        return total + lab.k(ops.rms_norm(total, lab.w, 1e-3)) + ops.rms_norm(total, lab.w2, 1e-3)

    gm = after(body, "fuse_add_rms_norm")
    assert op_counts(gm)["add_rms_norm"] == 1 and op_counts(gm)["rms_norm"] == 1


def test_merged_weights_name_their_sources():
    gm = after(cases.projections, "merge_linears")
    assert gm.meta["weight_sources"] == {
        "q_k_v.weight": ("q.weight", "k.weight", "v.weight"),
        "gate_up.weight": ("gate.weight", "up.weight"),
        "gate_up.bias": ("gate.bias", "up.bias"),
    }
    assert gm.get_parameter("q_k_v.weight").is_meta
    merged = [origin(n) for n in op_calls(gm, "linear")]
    assert merged == ["part", "part", "head"]


@pytest.mark.parametrize(
    "names, expected",
    [
        (("m.0.q_proj.weight", "m.0.k_proj.weight"), "m.0.q_k_proj.weight"),
        (("m.gate_proj.bias", "m.up_proj.bias"), "m.gate_up_proj.bias"),
        (("m.a.w", "m.b.w"), "m.a_b.w"),
        (("w1", "w2"), "w1_w2"),
    ],
)
def test_stacked_names(names, expected):
    assert stacked_name(list(names)) == expected


def test_step_inputs_come_in_order():
    gm = after(cases.two_layers, "rewrite_attention")
    run(gm, [step("select_logit_rows")], Facts(), target=TARGET)
    names = [n.name for n in gm.graph.find_nodes(op="placeholder")]
    assert names == [*STEP_INPUTS, "k_cache_0", "v_cache_0", "k_cache_1", "v_cache_1"]
    by_name = {n.name: value(n) for n in gm.graph.find_nodes(op="placeholder")}
    assert {by_name[n].dtype for n in names[:7]} == {torch.int32}
    num_seqs = by_name["context_lens"].shape[0]
    assert str(by_name["query_start"].shape[0]) == str(num_seqs + 1)
    assert str(by_name["slots"].shape[0]) == str(by_name["tokens"].shape[1])
    assert by_name["k_cache_0"].shape[1:4:2] == by_name["v_cache_1"].shape[1:4:2] == (3, HEAD)
    assert [arguments(n)["window"] for n in op_calls(gm, "paged_attention")] == [3, 0]
    assert [arguments(n)["softcap"] for n in op_calls(gm, "paged_attention")] == [0.0, 4.0]


def rows_of_linears(body):
    """Whether each linear, in order, is computed for rows that want logits alone."""
    gm = after(body, "select_logit_rows")
    rows = {n.name: value(n) for n in gm.graph.find_nodes(op="placeholder")}["logit_rows"]
    return [str(value(n).shape[1]) == str(rows.shape[0]) for n in op_calls(gm, "linear")]


def test_what_follows_the_last_attention_is_computed_for_selected_rows():
    assert rows_of_linears(cases.two_layers) == 5 * [False] + [True]
    assert rows_of_linears(cases.residuals) == 5 * [False] + 4 * [True]


def test_what_a_later_attention_reads_is_computed_for_all_rows():
    def body(lab, x, positions):
        x = lab.q(x)
        y = lab.k(x)
        return y + flat(attend(heads(x), heads(x), heads(x)))

    assert rows_of_linears(body) == [False, True, True]


def test_a_result_that_is_no_linear_is_refused():
    def body(lab, x, positions):
        return flat(attend(heads(x), heads(x), heads(x)))

    gm = before(lab(body), "select_logit_rows")
    (head,) = gm.graph.output_node().all_input_nodes
    with gm.graph.inserting_after(head):
        gm.graph.output_node().args = (gm.graph.call_function(torch.sin, (head,)),)
    with pytest.raises(PassError, match="not a linear"):
        step("select_logit_rows").function(gm, target=TARGET)


def test_narrow_values_are_rounded_once_where_they_are_made():
    gm = after(cases.two_layers, "lower_dtypes")
    for node in op_calls(gm, "linear"):
        given = arguments(node)
        assert value(given["x"]).dtype == value(given["weight"]).dtype == torch.bfloat16
        assert value(node).dtype == torch.float32
    for node in op_calls(gm, "paged_attention"):
        assert value(arguments(node)["q"]).dtype == torch.bfloat16
        assert value(arguments(node)["k_cache"]).dtype == torch.bfloat16
    wide = {n.target for n in gm.graph.find_nodes(op="get_attr") if value(n).dtype == torch.float32}
    assert wide == {"head_w", "inv_freq"}
    assert gm.get_parameter("q.weight").dtype == torch.bfloat16


def test_a_value_that_others_read_is_cast_and_stays_wide():
    def body(lab, x, positions):
        h = ops.rms_norm(x, lab.w, 1e-3)
        return ops.add(lab.q(h), h)

    def cached(lab, x, positions):
        x = body(lab, x, positions)
        return flat(attend(heads(x), heads(x), heads(x)))

    gm = after(cached, "lower_dtypes")
    (norm,) = op_calls(gm, "rms_norm")
    assert value(norm).dtype == torch.float32
    assert "cast" in [n.target._schema.name.partition("::")[2] for n in norm.users]


def test_fused_write_keeps_norms_of_queries_and_keys():
    gm = after(cases.two_layers, "fuse_rope_kv_write")
    first, second = (arguments(n) for n in op_calls(gm, "rope_kv_write"))
    assert (first["q_norm"].target, first["eps"]) == ("head_w", 1e-3)
    assert second["q_norm"] is None and second["k_norm"] is None


def test_interleaved_rotation_is_handed_on():
    def body(lab, x, positions):
        table = ops.rope_table(positions, lab.inv_freq)
        q, k = (ops.rope(heads(m(x)), table, True) for m in (lab.q, lab.k))
        return flat(attend(q, k, heads(x)))

    gm = after(body, "fuse_rope_kv_write")
    (node,) = op_calls(gm, "rope_kv_write")
    assert arguments(node)["interleaved"] is True


def test_checker_gives_stacked_weights_their_sources_values():
    gm = before(lab(cases.projections), "merge_linears")
    checker = Checker(gm)
    run(gm, [step("merge_linears")], Facts(), target=TARGET)
    gm.meta["weight_sources"]["gate_up.weight"] = ("up.weight", "gate.weight")
    with pytest.raises(PassError, match="moved the logits"):
        checker.check(step("merge_linears"))
