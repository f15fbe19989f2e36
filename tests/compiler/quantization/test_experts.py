"""Experts in integers: chosen by one name, rounded and read one by one, and calibrated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.fx import GraphModule

from ingot.artifact.formats import Storage
from ingot.compiler.quantization import calibrate, search
from ingot.compiler.quantization.calibrate import Calibrator
from ingot.compiler.quantization.choose import choose_storage
from ingot.compiler.quantization.gptq import gptq, inverse_factor, second_moments
from ingot.compiler.quantization.graph_matrices import matrices_in
from ingot.compiler.quantization.quantize import quantize_weights
from ingot.compiler.quantization.search import quantize_rows
from ingot.compiler.quantization.store import QuantizedWeights
from ingot.ops.scaled import Operand
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


class Watching(Calibrator):
    """Remembers the inputs of every expert that a token picks."""

    def matrix_of(self, stack: str, index: int, rows: torch.Tensor) -> Operand:
        self.seen = {**getattr(self, "seen", {}), matrix_name(stack, index): rows[0]}
        return super().matrix_of(stack, index, rows)

    def importance(self, stack: str) -> torch.Tensor:
        """Of all inputs of a stack."""
        rows = [x for name, x in self.seen.items() if name.startswith(stack)]
        return torch.cat(rows).square().mean(0)


@pytest.mark.parametrize("by_gptq", [True, False])
def test_experts_are_rounded_for_their_own_tokens_if_these_are_enough(
    graph: GraphModule,
    weights: QuantizedWeights,
    by_gptq: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And else for the inputs of all experts."""
    monkeypatch.setattr(calibrate, "FEWEST_TOKENS", 40)
    # Of many starts another one may win by the last digit of a sum.
    monkeypatch.setitem(search.WEIGHTED_STARTS, 8, (127.0,))
    walk = Watching(graph, weights, dict.fromkeys(STACKS, INT8), TOKENS, by_gptq=by_gptq)
    walk.run()
    ways = set()
    for stack, columns in STACKS.items():
        for index in range(EXPERTS):
            name, form = matrix_name(stack, index), INT8.of(columns)
            weight, own = DrawnWeights(graph).read(stack)[index], walk.seen[name]
            if by_gptq and len(own) >= 2 * columns:
                way, moments = "gptq", second_moments(own)
                wanted = gptq(weight, inverse_factor(moments), form, moments.diagonal())
            elif len(own) >= 40:
                way, wanted = "own", quantize_rows(weight, form, own.square().mean(0))
            else:
                way, wanted = "all", quantize_rows(weight, form, walk.importance(stack))
            got = weights.matrix(name).dequantize()
            torch.testing.assert_close(got, wanted.dequantize(), rtol=1e-5, atol=0)
            ways.add(way)
    assert ways == {"all", "own", *(["gptq"] if by_gptq else [])}


def test_experts_that_nobody_picks_are_rounded_for_the_inputs_of_others(
    graph: GraphModule, weights: QuantizedWeights
) -> None:
    walk = Watching(graph, weights, dict.fromkeys(STACKS, INT8), [TOKENS[0][:1]], by_gptq=False)
    walk.run()
    assert len(walk.seen) < len(STACKS) * EXPERTS
    for stack, columns in STACKS.items():
        for index, weight in enumerate(DrawnWeights(graph).read(stack)):
            wanted = quantize_rows(weight, INT8.of(columns), walk.importance(stack))
            got = weights.matrix(matrix_name(stack, index))
            torch.testing.assert_close(got.dequantize(), wanted.dequantize(), rtol=1e-5, atol=0)
