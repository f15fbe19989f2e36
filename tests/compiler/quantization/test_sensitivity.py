"""What rounding costs: gradients of pieces, and costs beside divergences that are measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ingot.artifact.formats import Storage
from ingot.compiler.export import export
from ingot.compiler.model import OpenModel, read_model
from ingot.compiler.options import Clock, CompileOptions, silent
from ingot.compiler.quantization.costs import Costs, Way
from ingot.compiler.quantization.graph_matrices import matrices_in
from ingot.compiler.quantization.search import quantize_rows
from ingot.compiler.quantization.sensitivity import Sensitivity
from ingot.compiler.reference import Interpreter, reference_logits
from ingot.models.model_dir import ModelDir
from ingot.ops.scaled import Operand, round_to_int8
from tests.support.core import core
from tests.support.tiny_models import EVERY, FAMILIES, save_random

torch.set_num_threads(1)

ROOT = Path(__file__).parents[3]
SAMPLED: list[list[int]] = json.loads((ROOT / "golden/shakespeare/sampled.json").read_text())
TEXT = [row[:96] for row in SAMPLED[:6]]
INT4, INT5, INT8 = Storage(4, 32, zeros=True), Storage(5, 32, zeros=True), Storage(8, 32)
BLOCK = 128


@pytest.fixture(scope="module")
def model() -> OpenModel:
    options = CompileOptions(targets=("cpu:portable",))
    directory = ModelDir.open(ROOT / "golden/models/shakespeare")
    return read_model(directory, options, Clock(silent))


@pytest.fixture(scope="module")
def graph(model: OpenModel) -> GraphModule:
    return export(model.module, model.config)


@pytest.fixture(scope="module")
def costs(model: OpenModel, graph: GraphModule) -> dict[str, Costs]:
    return costs_of(model, graph, [INT4, INT5, INT8, None])


def costs_of(
    model: OpenModel, graph: GraphModule, ways: Sequence[Way], kind: type[Sensitivity] = Sensitivity
) -> dict[str, Costs]:
    names = matrices_in(graph)
    given = (dict.fromkeys(names, ways), {name: [BLOCK] for name in names})
    read = model.checkpoint.read
    return kind(graph, read, TEXT, *given, torch.float32).measured()


def divergence(model: OpenModel, graph: GraphModule, read: Callable[[str], Operand]) -> float:
    """The mean KL to the model's own numbers, of the positions that are scored."""
    exact = reference_logits(graph, model.checkpoint.read, TEXT)
    return apart(exact, reference_logits(graph, read, TEXT))


def apart(exact: Sequence[Tensor], ours: Sequence[Tensor]) -> float:
    found = []
    for one, other in zip(exact, ours, strict=True):
        p, q = (x[1:].double().log_softmax(-1) for x in (one, other))
        found.append((p.exp() * (p - q)).sum(-1))
    return float(torch.cat(found).mean())


def test_pieces_give_the_gradients_of_the_whole(
    model: OpenModel, graph: GraphModule, costs: dict[str, Costs]
) -> None:
    class InOnePiece(Sensitivity):
        def _pieces(self, nodes: Sequence[Node]) -> list[list[Node]]:
            return [[*nodes]]

    pieces = Sensitivity(graph, model.checkpoint.read, TEXT, {}, {}, torch.float32)
    assert len(pieces._pieces(pieces._halves()[0])) >= 6  # as many as layers
    whole = costs_of(model, graph, [INT8], InOnePiece)
    for name, each in whole.items():
        assert each.stored[INT8] == pytest.approx(costs[name].stored[INT8], rel=1e-3), name
        assert each.rows == pytest.approx(costs[name].rows, rel=1e-3), name


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("model.layers.0.self_attn.v_proj.weight", INT4),
        ("model.layers.2.mlp.down_proj.weight", INT4),
        ("model.layers.5.mlp.up_proj.weight", INT5),
        ("model.embed_tokens.weight", INT5),
    ],
)
def test_a_matrix_costs_what_its_rounding_is_measured_to(
    model: OpenModel, graph: GraphModule, costs: dict[str, Costs], name: str, way: Storage
) -> None:
    def read(asked: str) -> Operand:
        value = model.checkpoint.read(asked)
        return quantize_rows(value, way.of(value.shape[1])) if asked == name else value

    measured = divergence(model, graph, read)
    # Errors of equal tokens add up in attention; they count as if they were independent.
    assert measured / 3 < costs[name].stored[way] < 3 * measured


def test_rows_cost_what_their_rounding_is_measured_to(
    model: OpenModel, graph: GraphModule, costs: dict[str, Costs]
) -> None:
    class RoundedRows(Interpreter):
        def _linear(self, node: Node) -> list[Tensor]:
            (x,) = self.values[node.args[0]]  # type: ignore[index]
            self.values[node.args[0]] = [round_to_int8(x, BLOCK).dequantize()]  # type: ignore[index]
            found = super()._linear(node)
            self.values[node.args[0]] = [x]  # type: ignore[index]
            return found

    exact = reference_logits(graph, model.checkpoint.read, TEXT)
    lengths = [len(tokens) for tokens in TEXT]
    (ours,) = RoundedRows(graph, model.checkpoint.read, TEXT).run()
    measured = apart(exact, ours[0].split(lengths))
    assert measured / 2 < sum(each.rows[BLOCK] for each in costs.values()) < 2 * measured


def test_finer_formats_cost_less(costs: dict[str, Costs]) -> None:
    for name, each in costs.items():
        four, five, eight, plain = (each.stored[way] for way in (INT4, INT5, INT8, None))
        assert four > five > eight > plain == 0, name


def test_the_text_is_that_of_every_run(
    model: OpenModel, graph: GraphModule, costs: dict[str, Costs]
) -> None:
    again = costs_of(model, graph, [INT4, INT5, INT8, None])
    assert {n: c.stored for n, c in again.items()} == {n: c.stored for n, c in costs.items()}


@pytest.mark.parametrize("name", core("llama", "gptoss", "gemma2", further=FAMILIES, slow=EVERY))
def test_every_family_has_gradients(name: str, tmp_path: Path) -> None:
    save_random(name, tmp_path / "model", tokenizer=True)
    options = CompileOptions(targets=("cpu:portable",))
    found = read_model(ModelDir.open(tmp_path / "model"), options, Clock(silent))
    with found.checkpoint:
        graph = export(found.module, found.config)
        names = matrices_in(graph)
        text = [[*range(1, 40)], [*range(90, 120)]]
        ways, blocks = {n: [INT4] for n in names}, {n: [32] for n in names}
        read = found.checkpoint.read
        costs = Sensitivity(graph, read, text, ways, blocks, torch.float32).measured()
    for matrix, each in costs.items():
        assert 0 < each.stored[INT4] < float("inf"), matrix
