"""Experts in integers: chosen by one name, rounded and read one by one, and calibrated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.fx import GraphModule

from ingot.artifact.formats import Storage
from ingot.compiler.quantization.choose import choose_storage
from ingot.compiler.quantization.graph_matrices import matrices_in
from ingot.compiler.quantization.quantize import quantize_weights
from ingot.compiler.quantization.search import quantize_rows
from ingot.compiler.quantization.store import QuantizedWeights
from ingot.ops import OPS
from ingot.ops.stacks import matrix_name
from ingot.passes.verification import DrawnWeights
from tests.passes.cases import mixture
from tests.passes.support import EXPERTS, INNER, SIZE, lab

torch.set_num_threads(1)

STACKS = {"experts.gate_up": SIZE, "experts.down": INNER}  # and their columns
INT8 = Storage(8, 8)
TOKENS = [[token % 31 for token in range(start, start + 20)] for start in (0, 7, 19)]


@pytest.fixture(scope="module")
def graph() -> GraphModule:
    return lab(mixture)


@pytest.fixture
def weights(graph: GraphModule, tmp_path: Path) -> Iterator[QuantizedWeights]:
    with QuantizedWeights(DrawnWeights(graph).read, tmp_path) as opened:
        yield opened


def test_stacks_are_chosen_by_one_name_and_routers_never(graph: GraphModule) -> None:
    chosen = choose_storage(matrices_in(graph), INT8, (), "float32")
    assert STACKS.keys() <= chosen.keys() and "router.weight" not in chosen
    for rule, left in (
        ("experts=none", set()),
        ("down=none", {"experts.gate_up"}),
        ("head=none", {*STACKS}),
    ):
        assert (
            choose_storage(matrices_in(graph), INT8, (rule,), "float32").keys() & STACKS.keys()
            == left
        )


def test_no_stack_is_read_whole(graph: GraphModule, weights: QuantizedWeights) -> None:
    read: list[str] = []
    weights.on_read = read.append
    quantize_weights(graph, weights, dict.fromkeys(STACKS, INT8))
    names = [matrix_name(stack, index) for stack in STACKS for index in range(EXPERTS)]
    assert read == names
    for stack, columns in STACKS.items():
        for index, each in enumerate(DrawnWeights(graph).read(stack)):
            got, wanted = (
                weights.matrix(matrix_name(stack, index)),
                quantize_rows(each, INT8.of(columns)),
            )
            assert torch.equal(got.values, wanted.values)
            assert torch.equal(got.scales, wanted.scales)


def test_experts_with_enough_tokens_are_calibrated(
    graph: GraphModule, weights: QuantizedWeights
) -> None:
    """Others are rounded as without calibration, also those that nobody picks."""
    read = DrawnWeights(graph).read
    shares = OPS["route"].reference(rows(graph) @ read("router.weight").T, None, "softmax", 2)
    seen = (shares[0] != 0).sum(0).tolist()
    quantize_weights(graph, weights, dict.fromkeys(STACKS, INT8), TOKENS)
    calibrated = set()
    for stack, columns in STACKS.items():
        for index in range(EXPERTS):
            name = matrix_name(stack, index)
            searched = quantize_rows(read(stack)[index], INT8.of(columns))
            is_other = not torch.equal(weights.matrix(name).values, searched.values)
            assert is_other == (seen[index] >= 2 * columns), (name, seen)
            calibrated.add(is_other)
    assert calibrated == {True, False}


def rows(graph: GraphModule) -> torch.Tensor:
    """What the router reads."""
    table = DrawnWeights(graph).read("embed.weight")
    return table[[token for tokens in TOKENS for token in tokens]][None]
