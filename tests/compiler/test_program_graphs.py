"""The program `hidden` of every family gives the last hidden state that `transformers` gives."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from ingot.artifact.programs import HIDDEN, STEP
from ingot.compiler.front import Front
from ingot.compiler.interpret import new_states, plan_logits, plan_weights
from ingot.compiler.lower_model import lower_model
from ingot.compiler.model import OpenModel, read_model
from ingot.compiler.options import Clock, CompileOptions, silent
from ingot.compiler.program_graphs import graph_of, result_of
from ingot.errors import UnsupportedModelError
from ingot.models.model_dir import ModelDir
from ingot.ops.steps import step_inputs
from ingot.passes.graph import aten, calls
from tests.compiler import plans
from tests.end_to_end.support import random_tokens
from tests.end_to_end.test_agreement import EXPERTS, USUAL
from tests.support.core import core
from tests.support.tiny_models import save_random

TOKENS = [random_tokens(19), random_tokens(7)]
PAGES = [[3, 1], [2]]
# A scale between the last hidden state and the head; learned positions; a cap of logits; an own
# head of latent attention; experts; a tied head.
SPREAD = ("gpt2", "granite", "gemma2", "deepseek_v3", "mixtral")


def made(folder: Path, **options: object) -> tuple[OpenModel, Front]:
    chosen = CompileOptions(
        targets=("cpu:portable",), programs=("step", "hidden"), dtype="float32", **options
    )
    model = read_model(ModelDir.open(folder), chosen, Clock(silent))
    return model, lower_model(model, Clock(silent))


def hidden_states(model: OpenModel, front: Front) -> torch.Tensor:
    """Those of all tokens, by the references of primitives."""
    lowered = front.programs[1]
    assert lowered.program is HIDDEN
    inputs = step_inputs(TOKENS, [0, 0], PAGES, lowered.plan.limits.page_size, HIDDEN)
    weights = plan_weights(lambda name: model.checkpoint.read(name).float())
    return plan_logits(lowered.plan, weights, inputs, new_states(lowered.plan, 5)).float()


@pytest.mark.cases(thorough=1)
@pytest.mark.parametrize(
    "name",
    core("llama", *SPREAD, further=[name for name in USUAL if name not in {"llama", *SPREAD}]),
)
def test_hidden_states_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    folder = save_random(name, tmp_path / "model", tokenizer=True)
    model, front = made(folder)
    with model.checkpoint:
        found = hidden_states(model, front)
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval().base_model
    with torch.no_grad():
        expected = torch.cat([theirs(torch.tensor([ids])).last_hidden_state[0] for ids in TOKENS])
    assert found.shape == expected.shape
    assert float((found - expected).norm() / expected.norm()) < 1e-4


def test_experts_are_among_the_families() -> None:
    assert set(EXPERTS) < set(USUAL)


def test_no_head_is_computed_or_stored(tmp_path: Path) -> None:
    model, front = made(save_random("llama", tmp_path / "model", tokenizer=True))
    step, hidden = (each.plan for each in front.programs)
    assert "lm_head.weight" in step.by_name and "lm_head.weight" not in hidden.by_name
    assert len(hidden.instructions) == len(step.instructions) - 1
    weights = {weight.name for weight in step.of_kind("weight")}
    assert {weight.name for weight in hidden.of_kind("weight")} == weights - {"lm_head.weight"}
    assert hidden.spec.states == step.spec.states
    (output,) = hidden.spec.outputs
    assert (output.name, output.dtype, output.shape[0]) == ("hidden", "float32", "R")
    model.checkpoint.close()


def test_passes_of_both_are_counted_by_the_blocks_that_each_has(tmp_path: Path) -> None:
    _, front = made(save_random("gemma2", tmp_path / "model", tokenizer=True), verify_passes=True)
    caps = {entry.program: entry.matched for entry in front.ledger if entry.name == "fuse_soft_cap"}
    assert caps == {"step": 1, "hidden": 0}
    assert {entry.program for entry in front.ledger} == {"step", "hidden"}


def test_a_graph_is_cut_in_a_copy() -> None:
    gm = plans.graph()
    before = len(gm.graph.nodes)
    hidden, whole = (graph_of(gm, each, result_of(gm, each)) for each in (HIDDEN, STEP))
    assert len(gm.graph.nodes) == len(whole.graph.nodes) == before
    assert len(hidden.graph.nodes) < before
    assert hidden.meta["program"] is HIDDEN


def test_a_model_that_does_not_end_with_a_head_is_refused() -> None:
    gm = plans.graph()
    (result,) = gm.graph.output_node().all_input_nodes
    other = calls(gm, aten.linear.default)[0]
    with gm.graph.inserting_after(result):
        both = gm.graph.call_function(aten.add.Tensor, (result, other))
    gm.graph.output_node().args = (both,)
    with pytest.raises(UnsupportedModelError, match="last hidden state ends cannot be told: %add"):
        result_of(gm, HIDDEN)
