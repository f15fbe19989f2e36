"""quantize_linears: what is stored how, activations once for all readers, and what it refuses."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule

from ingot.artifact.formats import Storage
from ingot.errors import PassError, UsageError
from ingot.passes.graph import arguments, op_calls, value
from ingot.passes.pipeline import pipeline
from ingot.passes.quantize_linears import quantize_linears
from ingot.passes.runner import run
from ingot.passes.storage import quantized_parameters
from ingot.passes.weights import sources
from tests.passes.cases import two_layers
from tests.passes.support import TARGET, Facts, Lab, before, lab

torch.set_num_threads(1)

EIGHT = Storage(4, 8)


def quantized(body, **storage: Storage) -> tuple[GraphModule, int]:
    """A body after the pass; storage by the name of the module, the others are left."""
    gm = before(lab(body), "quantize_linears")
    matched = quantize_linears(
        gm, target=TARGET, choose=lambda name: storage.get(name.removesuffix(".weight"))
    )
    gm.graph.eliminate_dead_code()
    gm.graph.lint()
    return gm, matched


def test_activations_are_quantized_once_for_all_readers_with_the_same_group():
    gm, matched = quantized(two_layers, head=EIGHT)
    assert matched == 1
    assert len(op_calls(gm, "quantize")) == len(op_calls(gm, "quantized_linear")) == 1
    storage = {"q": EIGHT, "k": EIGHT, "v": Storage(8, 8)}
    gm, matched = quantized(two_layers, **storage)
    linears = op_calls(gm, "quantized_linear")
    assert matched == 3
    assert len({arguments(node)["values"] for node in linears}) == len(op_calls(gm, "quantize"))
    assert len(op_calls(gm, "quantize")) < len(linears)
    gm, _ = quantized(two_layers, **(storage | {"v": Storage(8, 12)}))
    assert len(op_calls(gm, "quantize")) > len(linears) // 2


def test_what_is_not_chosen_stays():
    gm, matched = quantized(two_layers, head=EIGHT)
    assert len(op_calls(gm, "linear")) == 5 and len(op_calls(gm, "embedding")) == 1
    gm, matched = quantized(two_layers)
    assert matched == 0 and not op_calls(gm, "quantize")


def test_weights_are_integers_and_scales_share_their_sources():
    gm, _ = quantized(two_layers, head=EIGHT, embed=Storage(8, 0))
    parts = quantized_parameters(gm)
    assert {name: (p.part, p.bits, p.block) for name, p in parts.items()} == {
        "embed.weight": ("values", 8, 24),
        "embed.weight_scales": ("scales", 8, 24),
        "head.weight": ("values", 4, 8),
        "head.weight_scales": ("scales", 4, 8),
    }
    assert gm.get_parameter("head.weight").dtype == torch.int8
    assert gm.get_parameter("head.weight_scales").shape == (31, 3)
    assert sources(gm, "head.weight_scales") == ("head.weight",)
    (head,) = op_calls(gm, "quantized_linear")
    assert value(head).dtype == torch.float32


def tied(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    table = F.linear(x, lab.embed.weight)
    return lab.q(x) * table.sum(-1, keepdim=True)


def test_a_shared_table_is_stored_once():
    gm = lab(tied)
    run(gm, [s for s in pipeline() if s.name == "canonicalize_ops"], Facts(), target=TARGET)
    matched = quantize_linears(gm, target=TARGET)
    assert matched == 3  # embed, q, head
    tables = {
        arguments(node)["weight"].target
        for node in op_calls(gm, "quantized_linear", "quantized_embedding")
    }
    assert tables == {"embed.weight", "q.weight", "head.weight"}
    scales = [n for n in quantized_parameters(gm) if n.startswith("embed.") and "scales" in n]
    assert scales == ["embed.weight_scales"]


def test_a_matrix_that_something_else_reads_stays():
    def scaled(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
        return lab.q(x) * lab.q.weight.sum()

    gm = lab(scaled)
    run(gm, [s for s in pipeline() if s.name == "canonicalize_ops"], Facts(), target=TARGET)
    assert quantize_linears(gm, target=TARGET) == 2  # embed and head
    assert len(op_calls(gm, "linear")) == 1


def merged(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    x = torch.ops.ingot.rms_norm(x, lab.w, 1e-3)
    return lab.q(x) + lab.k(x)


def test_parts_of_one_matrix_must_agree():
    gm = lab(merged)
    names = ("canonicalize_ops", "merge_linears")
    steps = [s for s in pipeline() if s.name in names]
    run(gm, [type(s)(function=s.function) for s in steps], Facts(), target=TARGET)
    rules = {"q.weight": EIGHT, "k.weight": Storage(8, 8)}
    with pytest.raises(UsageError, match=r"one matrix.*q\.weight int4-g8, k\.weight int8-g8"):
        quantize_linears(gm, target=TARGET, choose=rules.get)
    assert quantize_linears(gm, target=TARGET, choose=dict.fromkeys(rules, EIGHT).get) == 2


def test_a_group_that_does_not_divide_is_refused():
    with pytest.raises(UsageError, match=r"groups of 16 do not divide the 24 columns of head"):
        quantized(two_layers, head=Storage(8, 16))


def test_a_matrix_that_is_not_found_fails_the_compile():
    gm = before(lab(two_layers), "quantize_linears")
    storage = {"head.weight": EIGHT, "other.weight": EIGHT}
    steps = [s for s in pipeline(quantize=storage) if s.name == "quantize_linears"]
    with pytest.raises(PassError, match="matched 1 times, the model must have 2"):
        run(gm, steps, Facts(), target=TARGET)
