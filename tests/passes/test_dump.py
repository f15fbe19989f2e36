"""Texts of graphs, word for word, and what a dump leaves behind."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch.fx import Graph, GraphModule

from ingot.errors import PassError
from ingot.passes.declaration import Pass
from ingot.passes.dump import count_delta, graph_text, node_text
from ingot.passes.graph import aten
from ingot.passes.pipeline import PIPELINE
from ingot.passes.runner import near_misses, run
from tests.passes import cases
from tests.passes.support import attend, before, flat, heads, lab, step

torch.set_num_threads(1)
ops = torch.ops.ingot

# What each pass should have taken where it matched too few times.
MISSED = {
    "fuse_rms_norm": (aten.rsqrt.default, aten.rms_norm.default, aten.mean.dim),
    "fuse_layer_norm": (aten.layer_norm.default,),
    "fuse_rope_table": (aten.cos.default, aten.sin.default),
    "fuse_rope": (aten.neg.default, aten.sub.Tensor, aten.stack.default),
    "fuse_attention": (aten.scaled_dot_product_attention.default, aten.softmax.int),
    "fuse_gates": (aten.silu.default, aten.gelu.default, aten.relu.default, aten.sigmoid.default),
    "lower_activations": (aten.silu.default, aten.gelu.default, aten.relu.default),
    "fuse_soft_cap": (aten.tanh.default,),
    "lower_scalars": (aten.mul.Tensor,),
    "lower_scales": (aten.mul.Tensor, aten.mul.Scalar),
    "merge_linears": (ops.linear.default,),
}


@pytest.mark.parametrize("name, target", [(n, t) for n, found in MISSED.items() for t in found])
def test_the_nearest_misses_of_a_pass_are_shown_with_what_is_around_them(name, target):
    graph = Graph()
    x = graph.call_function(aten.exp.default, (graph.placeholder("x"),))
    missed = graph.call_function(target, (x,))
    graph.output(graph.call_function(aten.abs.default, (missed,)))
    shown = near_misses(GraphModule(torch.nn.Module(), graph), step(name))
    first, *lines = shown.splitlines()
    assert (first, lines[0]) == ("Nearest misses:", "  at the model itself:")
    called = [line.strip().partition(" = ")[2].partition("(")[0] for line in lines[1:]]
    text = target._schema.name.replace("::", ".").removeprefix("ingot.")
    assert called == ["aten.exp", text, "aten.abs"]


def test_passes_that_take_what_they_find_miss_nothing():
    graph = Graph()
    graph.output(graph.placeholder("x"))
    gm = GraphModule(torch.nn.Module(), graph)
    assert {near_misses(gm, each) for each in PIPELINE} == {
        "Nothing in the graph resembles what it looks for."
    }


@pytest.mark.parametrize("times, more", [(1, ""), (3, ""), (4, "and 1 more"), (6, "and 3 more")])
def test_three_misses_are_shown_and_the_others_counted(times, more):
    graph = Graph()
    x = graph.placeholder("x")
    for _ in range(times):
        x = graph.call_function(aten.tanh.default, (x,))
    graph.output(x)
    shown = near_misses(GraphModule(torch.nn.Module(), graph), step("fuse_soft_cap"))
    assert shown.count("at the model itself") == min(times, 3)
    assert shown.endswith(f"\n  {more}") if more else "more" not in shown


def test_a_delta_names_what_changed_in_order():
    before, after = Counter(b=4, a=2, same=3), Counter(c=1, a=1, same=3)
    assert count_delta(before, after) == "nodes 9 -> 5; a 2 -> 1; b 4 -> 0; c 0 -> 1"
    assert count_delta(before, Counter(before)) == "(unchanged)"
    assert count_delta(Counter(a=1, b=1), Counter(a=2)) == "nodes 2 -> 2; a 1 -> 2; b 1 -> 0"


def body(lab, x, positions):
    y = torch.cat(x.bfloat16().float().split(8, -1), -1)
    return flat(attend(heads(lab.q(x)), heads(y), heads(y), window=3))


def test_a_graph_is_a_line_for_each_node():
    lines = graph_text(lab(body)).splitlines()
    assert lines[0] == "float32[31, 24]             embed_weight = weight embed.weight"
    assert "int64[1, N]                 input_ids = input" in lines
    text = "\n".join(line[28:] for line in lines)
    assert "linear = aten.linear(embedding, q_weight)  # q" in text
    assert "to = aten.to(embedding, bfloat16)  # part" in text
    assert "cat = aten.cat([getitem, getitem_1, getitem_2], -1)  # part" in text
    assert "attention = attention(view, view_1, view_2, scale=0.3, window=3)  # part" in text
    assert lines[-1].strip() == "output(linear_1)"
    (split,) = (line for line in lines if "aten.split" in line)
    assert split.startswith("float32[1, N, 8], float32[1, N, 8], float32[1, N, 8] split")


def test_arguments_are_shown_by_name_unless_they_are_the_default():
    graph = Graph()
    x, weight = graph.placeholder("x"), graph.get_attr("norm.weight")
    norm = graph.call_function(ops.rms_norm.default, (x, weight, 0.0, 0.0))
    gelu = graph.call_function(aten.gelu.default, (norm,), {"approximate": "tanh"})
    graph.output((gelu, norm))
    assert [node_text(node) for node in graph.nodes] == [
        "x = input",
        "norm_weight = weight norm.weight",
        "rms_norm_default = rms_norm(x, norm_weight, eps=0.0)",
        "gelu_default = aten.gelu(rms_norm_default, approximate=tanh)",
        "output(gelu_default, rms_norm_default)",
    ]


def test_sizes_of_a_step_have_their_letters():
    text = graph_text(before(lab(cases.two_layers), "lower_dtypes"))
    left = [line.partition(" = ")[0].rpartition(" ") for line in text.splitlines()]
    types = {name: shape.strip() for shape, _, name in left}
    assert {name: types[name] for name in types if types[name].startswith("int32")} == {
        "tokens": "int32[1, N]",
        "positions": "int32[1, N]",
        "slots": "int32[N]",
        "spans": "int32[S, 3]",
        "page_table": "int32[S, P]",
        "logit_rows": "int32[R]",
    }
    assert types["k_cache_0"] == types["v_cache_0"] == "float32[pages, 3, page_size, 8]"
    assert types["select_rows"].startswith("float32[1, R, ")


def negate(gm):
    """One call more."""
    output = gm.graph.output_node()
    with gm.graph.inserting_before(output):
        node = gm.graph.call_function(aten.neg.default, output.args)
    node.meta = dict(node.args[0].meta)
    output.args = (node,)
    return 1


def test_the_graph_that_a_pass_failed_on_is_there(tmp_path):
    with pytest.raises(PassError, match="account for 0"):
        run(lab(cases.swiglu), [Pass(function=negate, expect="rope")], {}, dump_dir=tmp_path)
    assert "output(neg_default)" in (tmp_path / "01_negate.txt").read_text()
    assert "aten.neg 0 -> 1" in (tmp_path / "summary.txt").read_text()


def test_each_pass_is_compared_with_what_it_was_given(tmp_path):
    run(lab(cases.swiglu), [Pass(function=negate), Pass(function=negate)], {}, dump_dir=tmp_path)
    lines = (tmp_path / "summary.txt").read_text().splitlines()
    assert lines[1].endswith("; aten.neg 0 -> 1") and lines[2].endswith("; aten.neg 1 -> 2")


def test_a_change_of_arguments_is_a_change(tmp_path):
    def scale(gm):
        """Other numbers, the same calls."""
        (node,) = gm.graph.find_nodes(op="call_function", target=aten.mul.Tensor)
        node.args = (node.args[0], 3.0)
        return 7

    gm = lab(lambda lab, x, positions: x * 2.0)
    run(gm, [Pass(function=scale), Pass(function=lambda gm: 0)], {}, dump_dir=tmp_path)
    assert "aten.mul(embedding, 3.0)" in (tmp_path / "01_scale.txt").read_text()
    head, first, second = (tmp_path / "summary.txt").read_text().splitlines()
    assert head.split() == ["pass", "ms", "matches", "calls"]
    name, milliseconds, matches, *rest = first.split()
    assert (name, matches) == ("scale", "7") and float(milliseconds) >= 0.0
    assert " ".join(rest) == "(the same calls with other arguments)"
    assert second.endswith("0  (unchanged)")
    assert "3.0" in gm.code, "the graph can be run"
