"""Every invariant, struck by graphs that break it and by none that does not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from ingot.passes import invariants
from ingot.passes.graph import op_calls, value
from ingot.passes.pipeline import pipeline
from ingot.passes.runner import run
from tests.passes import cases
from tests.passes.support import flat, heads, lab, step

torch.set_num_threads(1)


def broken(name, body):
    """What an invariant says of a body as it was exported."""
    return " ".join(getattr(invariants, name)(lab(body)))


@pytest.mark.parametrize(
    "name, body, found",
    [
        ("no_noise", lambda lab, x, p: x.clone(), "aten.clone"),
        ("no_noise", lambda lab, x, p: x.transpose(1, 2).contiguous().transpose(1, 2), "contig"),
        ("canonical_views", lambda lab, x, p: x.view(1, -1, 24), "aten.view"),
        ("canonical_views", lambda lab, x, p: flat(heads(x).permute(0, 1, 2, 3)), "aten.permute"),
        ("canonical_views", lambda lab, x, p: torch.cat(x.split(12, -1), -1), "aten.split"),
        ("tokens_before_heads", lambda lab, x, p: x.transpose(1, 2).transpose(1, 2), "transpose"),
        ("only_known_ops", lambda lab, x, p: torch.sin(x), "aten.sin.default at part"),
        ("only_known_ops", lambda lab, x, p: heads(x)[:, :, :, 1:], "aten.slice"),
        ("only_known_ops", lambda lab, x, p: x[..., :12:2].repeat(1, 1, 4), "aten.slice"),
        ("only_known_ops", lambda lab, x, p: x.reshape(-1, 1, 24), "aten.reshape"),
    ],
)
def test_what_breaks_an_invariant_is_listed(name, body, found):
    def whole(lab, x, positions):
        return x + body(lab, x, positions).mean(dtype=torch.float32)

    assert found in broken(name, whole)


def final(dtype="float32"):
    gm = lab(cases.two_layers)
    names = [each.name for each in pipeline(dtype=dtype)]
    run(gm, [step(name) for name in names], {})
    return gm


def test_a_final_graph_breaks_none():
    gm = final("bfloat16")
    assert [each.__name__ for each in invariants.INVARIANTS if each(gm)] == []


def test_inputs_are_all_there_and_in_order():
    gm = final()
    nodes = {n.name: n for n in gm.graph.find_nodes(op="placeholder")}
    nodes["v_cache_0"].append(nodes["k_cache_0"])
    assert "k_cache_0" in " ".join(invariants.step_inputs(gm))
    nodes["v_cache_0"].prepend(nodes["k_cache_0"])
    assert invariants.step_inputs(gm) == []
    gm.meta["states"] = {n: s for n, s in gm.meta["states"].items() if n != "v_cache_1"}
    assert invariants.step_inputs(gm)


@pytest.mark.parametrize("name, missing", [("logit_rows", False), ("slots", True)])
def test_only_rows_that_want_logits_may_be_missing(name, missing):
    gm = final()
    (node,) = (n for n in gm.graph.find_nodes(op="placeholder") if n.name == name)
    node.replace_all_uses_with(gm.graph.find_nodes(op="placeholder")[0])
    gm.graph.erase_node(node)
    assert bool(invariants.step_inputs(gm)) is missing
    assert bool(invariants.rows_selected(gm)) is (name == "logit_rows")


def test_attention_over_a_whole_sequence_is_no_step():
    gm = lab(cases.two_layers)
    found = invariants.step_inputs(gm)
    assert found[0] == "inputs input_ids, positions"
    assert sum("ingot.attention" in line for line in found) == 2


def test_a_result_for_every_token_has_no_selected_rows():
    gm = final()
    (select,) = op_calls(gm, "select_rows")
    assert invariants.rows_selected(gm) == []
    tokens = value(select.args[0])
    head = gm.graph.output_node().args[0]
    head.meta["val"] = tokens.new_empty((*tokens.shape[:2], 31))
    assert invariants.rows_selected(gm) == [f"result {head}"]


@pytest.mark.cases(core=1)
@pytest.mark.parametrize("what", ["rows", "matrix", "result"])
def test_products_of_two_dtypes_or_with_a_narrow_result_are_found(what):
    gm = final("bfloat16")
    linear = op_calls(gm, "linear")[-1]
    changed = {"rows": linear.args[0], "matrix": linear.args[1], "result": linear}[what]
    other = torch.bfloat16 if what == "result" else torch.float32
    changed.meta["val"] = value(changed).to(other)
    assert [line.partition(" ")[0] for line in invariants.typed(gm)] == [linear.name]


def test_a_dropout_that_nothing_dropped_is_no_known_op():
    """Only calls are judged: inputs, weights and the result are no ops."""
    gm = lab(lambda lab, x, p: F.dropout(x, 0.5, True))
    assert any("aten.dropout" in line for line in invariants.only_known_ops(gm))
    assert not any("embed.weight" in line for line in invariants.only_known_ops(gm))
