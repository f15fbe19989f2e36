"""What single passes must get right beyond firing."""

import pytest
import torch

from ingot.artifact.formats import Storage
from ingot.artifact.programs import STEP
from ingot.errors import PassError
from ingot.passes.dump import op_counts
from ingot.passes.graph import arguments, op_calls, origin, value
from ingot.passes.invariants import typed
from ingot.passes.lower_dtypes import lower_dtypes
from ingot.passes.merge_linears import merge_linears
from ingot.passes.runner import run
from ingot.passes.stacked_name import stacked_name
from ingot.passes.verification import Checker
from tests.passes import cases
from tests.passes.support import HEAD, attend, before, flat, heads, lab, rms, step

torch.set_num_threads(1)
ops = torch.ops.ingot


def after(body, name):
    gm = before(lab(body), name)
    run(gm, [step(name)], {}, verify=True)
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


def waves(positions, frequencies, *, halves=False, scale=1.0):
    angles = positions[..., None] * frequencies
    angles = torch.cat((angles, angles), -1) if halves else angles
    return angles.cos() * scale, angles.sin() * scale


OTHER_TABLES = {
    "positions": lambda lab, positions: waves(positions + 3, lab.inv_freq),
    "frequencies": lambda lab, positions: waves(positions, lab.head_w),
    "order": lambda lab, positions: waves(positions, lab.inv_freq, halves=True),
    "scale": lambda lab, positions: waves(positions, lab.inv_freq, scale=0.5),
}


@pytest.mark.cases(core=2)
@pytest.mark.parametrize("differing", OTHER_TABLES)
def test_tables_that_differ_in_one_thing_stay_two(differing):
    """Cosines of both come first, so that each has sines of another table to be mistaken for."""

    def body(lab, x, positions):
        cos, sin = waves(positions, lab.inv_freq)
        other_cos, other_sin = OTHER_TABLES[differing](lab, positions)
        first, second = (cos - sin)[..., 1:2], (other_cos + other_sin)[..., 1:2]
        return x * first * second

    assert len(op_calls(after(body, "fuse_rope_table"), "rope_table")) == 2


def test_gates_of_every_kind_keep_their_kind_and_the_order_of_their_operands():
    gm = after(cases.gated, "fuse_gates")
    found = op_calls(gm, "gate")
    kinds = ["silu", "silu", "gelu", "gelu_tanh", "relu", "relu"]
    assert [arguments(n)["kind"] for n in found] == kinds
    assert {origin(arguments(n)["gate"]) for n in found} == {"gate"}
    assert {origin(arguments(n)["up"]) for n in found} == {"up"}


def test_the_cap_is_captured():
    gm = after(cases.capped, "fuse_soft_cap")
    assert [arguments(n)["cap"] for n in op_calls(gm, "soft_cap")] == [30.0, 2.5]


def test_the_factor_is_captured():
    gm = after(cases.scaled, "lower_scales")
    assert [arguments(n)["factor"] for n in op_calls(gm, "mul")] == [4.899, 0.5]


def test_norms_of_queries_and_keys_keep_their_own_offset_epsilon_and_weight():
    def body(lab, x, positions):
        q = rms(heads(lab.q(x)), 1.5 + lab.head_w, 0.25)
        k = rms(heads(lab.k(x)), 0.5 + lab.head_w2, 1e-3)
        return flat(attend(q, k, heads(lab.v(x))))

    gm = after(body, "fuse_rms_norm")
    found = [arguments(n) for n in op_calls(gm, "rms_norm")]
    assert [(n["weight"].target, n["offset"], n["eps"]) for n in found] == [
        ("head_w", 1.5, 0.25),
        ("head_w2", 0.5, 1e-3),
    ]


def test_a_norm_of_part_of_a_head_or_by_part_of_a_weight_stays():
    def wider_than_its_weight(lab, x, positions):
        return flat(rms(heads(x), lab.head_w[:1]))

    def a_weight_for_each_head(lab, x, positions):
        return flat(rms(heads(x), lab.w.view(3, 8)))

    for body in (wider_than_its_weight, a_weight_for_each_head):
        gm = before(lab(body), "fuse_rms_norm")
        assert step("fuse_rms_norm").function(gm) == 0


def test_caches_have_the_heads_and_the_size_of_their_own_layer():
    """Keys of another layer, or values of another size, do not pass for these."""

    def body(lab, x, positions):
        x = flat(attend(heads(x), heads(lab.k(x)), heads(lab.v(x))))
        wide = x.view(1, x.shape[1], 2, 12)
        y = attend(wide, lab.k(x).view(1, x.shape[1], 2, 12), wide)
        return y.reshape(1, x.shape[1], 24)

    gm = after(body, "rewrite_attention")
    records = {name: state.record for name, state in gm.meta["states"].items()}
    assert records == {
        "k_cache_0": (3, 8),
        "v_cache_0": (3, 8),
        "k_cache_1": (2, 12),
        "v_cache_1": (2, 12),
    }
    assert [arguments(n)["k_cache"].name for n in op_calls(gm, "kv_write")] == [
        "k_cache_0",
        "k_cache_1",
    ]


def test_attention_reads_shared_heads_and_its_scale():
    gm = after(cases.attended, "fuse_attention")
    found = [
        (value(arguments(n)["k"]).shape[2], arguments(n)["scale"])
        for n in op_calls(gm, "attention")
    ]
    assert found == [(1, HEAD**-0.5), (1, 0.2)]


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
    parts = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.slice.Tensor)
    assert [origin(n) for n in parts] == ["q", "k", "v", "gate", "up"]


def test_linears_that_a_checkpoint_stores_in_different_ways_stay_apart():
    """And their place counts, though none of them is merged there, as with gate and up."""
    gm = before(lab(cases.projections), "merge_linears")
    alike, other = Storage(4, 32), Storage(8, 32)
    kept = {"q.weight": alike, "k.weight": alike, "v.weight": other, "gate.weight": other}
    assert merge_linears(gm, kept) == 2
    weights = [str(arguments(n)["weight"].target) for n in op_calls(gm, "linear")]
    assert weights[:4] == ["q_k.weight", "v.weight", "gate.weight", "up.weight"]


@pytest.mark.parametrize(
    "names, expected",
    [
        (("m.0.q_proj.weight", "m.0.k_proj.weight"), "m.0.q_k_proj.weight"),
        (("m.gate_proj.bias", "m.up_proj.bias"), "m.gate_up_proj.bias"),
        (("m.a.w", "m.b.w"), "m.a_b.w"),
        (("w1", "w2"), "w1_w2"),
        (("m.proj.weight", "m.q_proj.weight"), "m.proj_q_proj.weight"),
        (("m.a.w", "m.a.v", "m.b.w"), "m.a_a_b.w"),
    ],
)
def test_stacked_names(names, expected):
    assert stacked_name(list(names)) == expected


def test_step_inputs_come_in_order():
    gm = after(cases.two_layers, "rewrite_attention")
    run(gm, [step("select_logit_rows")], {})
    names = [n.name for n in gm.graph.find_nodes(op="placeholder")]
    step_inputs = [array.name for array in STEP.inputs_for("paged")]
    assert names == [*step_inputs, "k_cache_0", "v_cache_0", "k_cache_1", "v_cache_1"]
    by_name = {n.name: value(n) for n in gm.graph.find_nodes(op="placeholder")}
    assert {by_name[n].dtype for n in names[:6]} == {torch.int32}
    num_seqs = by_name["page_table"].shape[0]
    assert str(by_name["spans"].shape[0]) == str(num_seqs)
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

    def residuals(lab, x, positions):
        x = cases.two_layers(lab, x, positions)
        x = x + lab.q(ops.rms_norm(x, lab.w, 1e-3))
        return lab.k(ops.rms_norm(x, lab.w2, 1e-3)) + x

    assert rows_of_linears(residuals) == 5 * [False] + 3 * [True]


def test_what_a_later_attention_reads_is_computed_for_all_rows():
    def body(lab, x, positions):
        x = lab.q(x)
        y = lab.k(x)
        return y + flat(attend(heads(x), heads(x), heads(x)))

    assert rows_of_linears(body) == [False, True, True]


def test_a_result_that_is_not_computed_row_by_row_is_refused():
    def body(lab, x, positions):
        return flat(attend(heads(x), heads(x), heads(x)))

    gm = before(lab(body), "select_logit_rows")
    (head,) = gm.graph.output_node().all_input_nodes
    with gm.graph.inserting_after(head):
        gm.graph.output_node().args = (gm.graph.call_function(torch.sin, (head,)),)
    with pytest.raises(PassError, match="is not computed row by row"):
        step("select_logit_rows").function(gm)


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


def test_narrow_values_can_be_float16():
    gm = before(lab(cases.two_layers), "lower_dtypes")
    assert lower_dtypes(gm, narrow=torch.float16) == cases.CASES["lower_dtypes"].count
    read = [arguments(node)["x"] for node in op_calls(gm, "linear")]
    read += [arguments(node)["k_cache"] for node in op_calls(gm, "paged_attention")]
    assert {value(node).dtype for node in read} == {torch.float16}
    assert gm.get_parameter("q.weight").dtype == torch.float16
    assert typed(gm) == []


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


def test_checker_gives_stacked_weights_their_sources_values():
    gm = before(lab(cases.projections), "merge_linears")
    checker = Checker(gm)
    run(gm, [step("merge_linears")], {})
    gm.meta["weight_sources"]["gate_up.weight"] = ("up.weight", "gate.weight")
    with pytest.raises(PassError, match="moved the logits"):
        checker.check(step("merge_linears"))


def test_pytorchs_own_norm_without_an_epsilon_has_that_of_its_dtype():
    def body(lab, x, positions):
        return torch.nn.functional.rms_norm(x * 1e-4, (x.shape[-1],), lab.w)

    gm = after(body, "fuse_rms_norm")
    assert [arguments(n)["eps"] for n in op_calls(gm, "rms_norm")] == [torch.finfo().eps]
