"""Export: any number of tokens, stable names, the origin of every node, typed failures."""

import pytest
import torch
from torch import nn

from ingot.compiler.export import export
from ingot.errors import ExportError
from ingot.ops.registry import OPS
from ingot.passes.graph import origin
from ingot.passes.verification import Checker, GraphRunner
from tests.passes import cases
from tests.passes.support import Facts, Lab, lab


def test_graph_is_flat_with_two_inputs_and_one_result():
    gm = lab(cases.swiglu)
    assert [n.name for n in gm.graph.find_nodes(op="placeholder")] == ["input_ids", "positions"]
    assert {n.op for n in gm.graph.nodes} == {"placeholder", "get_attr", "call_function", "output"}
    (result,) = gm.graph.output_node().all_input_nodes
    val = result.meta["val"]
    assert val.shape[0] == 1 and isinstance(val.shape[1], torch.SymInt) and val.shape[2] == 31
    assert not any("guard" in name for name, _ in gm.named_modules())
    assert all(p.is_meta for p in gm.parameters())


def test_nodes_tell_where_they_come_from():
    gm = lab(cases.swiglu)
    silu = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.silu.default)
    linears = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.linear.default)
    assert [origin(n) for n in silu] == ["part", "part"][: len(silu)]
    assert {origin(n) for n in linears} == {"gate", "up", "head"}


def test_names_are_stable():
    names = [[n.name for n in lab(cases.norms).graph.nodes] for _ in range(2)]
    assert names[0] == names[1]


@pytest.mark.cases(core=1)
@pytest.mark.parametrize("num_tokens", [1, 2, 9])
def test_any_number_of_tokens_runs(num_tokens):
    gm = lab(cases.attended)
    ids, positions = torch.ones(1, num_tokens).long(), torch.arange(num_tokens)[None]
    read = Checker(gm).weights.read
    assert GraphRunner(gm, read).run(ids, positions).shape == (1, num_tokens, 31)


def test_inputs_keep_their_order_whichever_is_used_first():
    def body(lab, x, positions):
        return x * positions[..., None]

    class Late(nn.Module):
        def __init__(self):
            super().__init__()
            self.lab = Lab(body)

        def forward(self, input_ids, positions):
            shifted = positions + 1
            return self.lab(input_ids, shifted)

    with torch.device("meta"):
        gm = export(Late(), Facts())
    ids, positions = gm.graph.find_nodes(op="placeholder")
    assert [str(n.target) for n in positions.users] == ["aten.add.Tensor"]
    assert [str(n.target) for n in ids.users] == ["aten.embedding.default"]


def test_tied_weights_are_read_under_one_name():
    model = Lab(cases.swiglu).to("meta")
    model.head.weight = model.embed.weight
    gm = export(model, Facts())
    names = {n.target for n in gm.graph.find_nodes(op="get_attr")}
    assert len(names & {"embed.weight", "head.weight"}) == 1


def branch_on_values(lab, x, positions):
    return x if positions.sum() > 3 else -x


def branch_on_length(lab, x, positions):
    return x if x.shape[1] > 5 else -x


@pytest.mark.parametrize("body", [branch_on_values, branch_on_length])
def test_what_cannot_be_captured_is_named(body):
    with pytest.raises(ExportError, match="LabForCausalLM cannot be exported"):
        lab(body)


def test_ops_stay_single_calls():
    gm = lab(cases.two_layers)
    attention = gm.graph.find_nodes(op="call_function", target=OPS["attention"].overload)
    assert len(attention) == 2
