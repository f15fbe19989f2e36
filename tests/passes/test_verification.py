"""Verification: what graphs are run on, and how far results may lie apart."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import replace
from operator import ne

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule

from ingot.errors import PassError
from ingot.ops.steps import paged_step
from ingot.passes import verification
from ingot.passes.declaration import Pass
from ingot.passes.graph import op_calls, set_arguments, value
from ingot.passes.runner import run
from ingot.passes.verification import (
    LENGTHS,
    PAGE_SIZE,
    ROWS,
    Checker,
    DrawnWeights,
    example_inputs,
    random_tokens,
    relative_error,
)
from tests.passes import cases
from tests.passes.support import Lab, before, lab, step
from tests.passes.test_runner import scale_a_weight

torch.set_num_threads(1)
ops = torch.ops.ingot


def test_errors_are_relative_to_the_reference():
    reference = torch.tensor([[3.0, 4.0]])
    assert relative_error(reference, reference) == 0.0
    assert relative_error(2 * reference, reference) == 1.0
    assert relative_error(torch.zeros(1, 2), reference) == 1.0
    assert relative_error(reference + torch.tensor([0.0, 1.0]), reference) == pytest.approx(0.2)
    assert relative_error(reference[:, :1], reference) == math.inf
    assert math.isnan(relative_error(reference * math.nan, reference))


class Holder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        sizes = {"matrix": (64, 400), "weight": (4000,), "bias": (4000,)}
        for name, size in sizes.items():
            self.register_parameter(name, torch.nn.Parameter(torch.empty(size, device="meta")))
        self.register_buffer("table", torch.empty(30, 50, device="meta"))
        self.again = self.weight


def test_weights_keep_the_size_of_what_they_are_multiplied_with():
    weights = DrawnWeights(GraphModule(Holder(), torch.fx.Graph()))
    weights.shapes = {n: tuple(p.shape) for n, p in Holder().named_parameters()}
    weights.shapes["table"], weights.constants = (30, 50), {"table"}
    made = {name: weights.read(name) for name in ("matrix", "weight", "bias", "table")}
    assert {name: tuple(tensor.shape) for name, tensor in made.items()} == weights.shapes
    found = {name: (float(t.mean()), float(t.std())) for name, t in made.items()}
    expected = {"matrix": (0, 1 / 20), "weight": (1, 0.1), "bias": (0, 0.1), "table": (0.5, 0.289)}
    for name, pair in expected.items():
        assert found[name] == pytest.approx(pair, abs=0.02)
    assert made["table"].min() >= 0 and made["table"].max() <= 1
    assert {tensor.dtype for tensor in made.values()} == {torch.float32}


def test_a_weight_depends_on_its_name_alone():
    """In every process, and for every graph that has it."""
    gm = lab(cases.swiglu)
    weights = DrawnWeights(gm)
    rng = torch.Generator().manual_seed(zlib.crc32(b"gate.weight"))
    assert torch.equal(weights.read("gate.weight"), torch.randn(24, 24, generator=rng) / 24**0.5)
    assert not torch.equal(weights.read("gate.weight"), weights.read("up.weight"))
    assert torch.equal(DrawnWeights(gm).read("gate.weight"), weights.read("gate.weight"))


def test_tied_weights_have_both_names():
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(3, 4), "b": torch.nn.Linear(3, 4)})
    model["b"].weight = model["a"].weight
    gm = torch.fx.symbolic_trace(torch.nn.Sequential(model["a"], torch.nn.ReLU()))
    gm.add_module("a", model["a"])
    gm.add_module("b", model["b"])
    assert DrawnWeights(gm).shapes["a.weight"] == DrawnWeights(gm).shapes["b.weight"] == (4, 3)


@pytest.mark.cases(core=1)
@pytest.mark.parametrize("room, kept", [(0, []), (24 * 24 * 4, ["up.weight"]), (1 << 20, 3)])
def test_weights_are_kept_while_there_is_room(room, kept, monkeypatch):
    monkeypatch.setattr(verification, "KEEP_BYTES", room)
    weights = DrawnWeights(lab(cases.swiglu))
    names = ["up.weight", "gate.weight", "up.bias"]
    first = [weights.read(name) for name in names]
    assert list(weights.kept) == (names if kept == 3 else kept)
    for name, tensor in zip(names, first, strict=True):
        again = weights.read(name)
        assert torch.equal(again, tensor) and (again is tensor) is (name in weights.kept)


def test_a_plain_graph_runs_once_a_sequence_from_position_zero():
    gm = lab(cases.swiglu)
    tokens = random_tokens(gm)
    assert tokens.shape == (1, 9) and tokens.min() >= 0 and tokens.max() < 31
    assert len(tokens.unique()) > 3
    (ids, positions), (more_ids, more) = example_inputs(gm)
    assert torch.equal(torch.cat((ids, more_ids), 1), tokens)
    assert positions.tolist() == [[0, 1, 2, 3, 4, 5]] and more.tolist() == [[0, 1, 2]]


def test_ids_are_those_of_the_smallest_table():
    def body(lab, x, positions):
        return x + torch.nn.functional.embedding(positions, lab.q.weight)

    for gm in (lab(body), before(lab(body), "fuse_gates")):
        assert verification.vocab_size(gm) == 24
    assert verification.vocab_size(GraphModule(torch.nn.Module(), torch.fx.Graph())) == 16


def test_a_step_runs_all_sequences_at_once_over_pages_without_numbers():
    gm = before(lab(cases.two_layers), "lower_dtypes")
    nodes = gm.graph.find_nodes(op="placeholder")
    (given,) = example_inputs(gm)
    by_name = dict(zip([n.name for n in nodes], given, strict=True))
    rng = torch.Generator().manual_seed(2)
    expected, num_pages = paged_step(rng, [(n, n) for n in LENGTHS], PAGE_SIZE)
    for name in ("slots", "spans", "page_table"):
        assert torch.equal(by_name[name], expected[name])
    assert by_name["tokens"].tolist() == random_tokens(gm).tolist()
    assert by_name["positions"].tolist() == [[0, 1, 2, 3, 4, 5, 0, 1, 2]]
    assert by_name["logit_rows"].tolist() == list(ROWS)
    assert {n.name: value(n).dtype for n in nodes} == {n: t.dtype for n, t in by_name.items()}
    caches = [tensor for name, tensor in by_name.items() if "cache" in name]
    assert len(caches) == 4
    assert all(t.shape == (num_pages, 3, PAGE_SIZE, 8) and t.isnan().all() for t in caches)


def test_rows_of_a_step_are_compared_with_their_own_rows():
    gm = before(lab(cases.two_layers), "select_logit_rows")
    checker = Checker(gm)
    reference = checker.logits
    assert reference.shape == (sum(LENGTHS), 31) and reference.isfinite().all()
    run(gm, [step("select_logit_rows")], {})
    checker.check(step("select_logit_rows"))
    torch.testing.assert_close(checker.logits, reference[list(ROWS)])


def test_each_pass_is_compared_with_the_one_before_it():
    """Two that are each within bounds are accepted, though together they are not."""
    gm, each = lab(cases.swiglu), Pass(function=lambda gm: 0, tolerance=1e-3)
    run(gm, [step("canonicalize_casts"), step("canonicalize_views"), step("canonicalize_ops")], {})
    checker = Checker(gm)
    reference = checker.logits
    for _ in range(20):
        scale_a_weight(gm)
        checker.check(each)
    assert relative_error(checker.logits, reference) > each.tolerance
    scale_a_weight(gm)
    with pytest.raises(PassError, match="not by one bit"):
        checker.check(replace(each, tolerance=0.0))


def of_experts_alone(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    shares = ops.route(lab.router(x), None, "softmax", 1)
    return ops.experts(x, shares, lab.experts.gate_up, lab.experts.down, None, None, "silu", 1)


def reading(checker: Checker, change: Callable[[Tensor], Tensor]) -> Checker:
    """The checker, with other weights of the router from now on."""
    read = checker.weights.read
    checker.read = lambda name: change(read(name)) if name == "router.weight" else read(name)
    return checker


def picked(checker: Checker) -> list[int]:
    """The expert of each token."""
    return torch.cat(checker.before.given, 1)[0].argmax(-1).tolist()


def of_the_last_expert(factor: float) -> Callable[[Tensor], Tensor]:
    return lambda weight: torch.cat([weight[:-1], weight[-1:] * factor])


def test_rows_may_go_to_other_experts_where_rounding_explains_it():
    gm, each = lab(of_experts_alone), Pass(function=lambda gm: 0, tier="numeric", tolerance=0.1)
    checker = Checker(gm)
    picks, logits = picked(checker), checker.logits
    reading(checker, of_the_last_expert(0.9)).check(each)
    assert sum(map(ne, picks, picked(checker))) == 1
    assert relative_error(checker.logits, logits) > each.tolerance
    checker.check(replace(each, tolerance=0.0))  # beside what this pass has left


@pytest.mark.parametrize(
    "change, tolerance",
    [
        pytest.param(of_the_last_expert(0.9), 0.01, id="less was rounded"),
        pytest.param(of_the_last_expert(0.5), 0.1, id="far logits"),
        pytest.param(lambda weight: weight.roll(1, 0), 0.1, id="other experts"),
    ],
)
def test_rows_that_go_to_other_experts_without_need_are_noticed(
    change: Callable[[Tensor], Tensor], tolerance: float
):
    checker = reading(Checker(lab(of_experts_alone)), change)
    with pytest.raises(PassError, match="moved the logits"):
        checker.check(Pass(function=lambda gm: 0, tier="numeric", tolerance=tolerance))


def test_a_fault_in_a_router_is_noticed_though_its_logits_are_as_before():
    gm = lab(of_experts_alone)
    checker = Checker(gm)
    (route,) = op_calls(gm, "route")
    set_arguments(route, scale=1.5)
    with pytest.raises(PassError, match="moved the logits"):
        checker.check(Pass(function=lambda gm: 0, tier="numeric", tolerance=0.1))
