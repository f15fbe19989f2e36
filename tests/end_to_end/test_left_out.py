"""A pass or a rule of grouping that is left out changes speed, and results within its tier."""

from __future__ import annotations

import pytest

from ingot.artifact.reader import Artifact
from ingot.compare.compare import compare
from ingot.compare.prompts import ComparedPrompt
from ingot.compare.sides import open_side
from ingot.passes.pipeline import PIPELINE, optional_passes
from ingot.targets.cpu.kind import KIND
from tests.end_to_end.support import BUNDLED, Compile, Compiled
from tests.support.core import core

PROMPTS = [
    ComparedPrompt(f"{n} tokens", tuple((37 * i + n) % 320 for i in range(n))) for n in (1, 17, 90)
]
INT4 = {"quantize": "int4", "kv_dtype": "int8"}
# A model that each makes something of, and how it is compiled. The widths of random models are too
# odd for some groups.
CASES = {
    "group_heads": Compile("qwen3", "float32", 312),
    "group_head_products": Compile(BUNDLED.name, "bfloat16", 128, quantize="int4"),
    "group_gates": Compile(BUNDLED.name, "bfloat16", 128, quantize="int4"),
    "group_activations": Compile("gpt2", "bfloat16", 128),
    "group_residuals": Compile("qwen3", "bfloat16", 128, **INT4),
    "group_soft_caps": Compile("gemma2", "bfloat16", 128),
    "group_sums": Compile("gemma2", "bfloat16", 128, **INT4),
    "group_casts": Compile("bert", "bfloat16", 64),
    "group_rounding": Compile(BUNDLED.name, "bfloat16", 128, quantize="int4"),
    "merge_linears": Compile(BUNDLED.name, "bfloat16", 128),
}


def without(name: str) -> Compile:
    case = CASES[name]
    return Compile(**{**vars(case), "disable_passes": (name,)})


def made(artifact: Artifact, name: str) -> int:
    """How often a pass matched, or how many groups of a rule were formed."""
    (target,) = artifact.manifest.targets
    passes = {entry.name: entry.matched for entry in artifact.manifest.ledger}
    groups = {entry.name: entry.formed for entry in target.main.groups}
    return (passes | groups).get(name, 0)


def tolerance(name: str) -> float:
    """The relative error of logits that leaving it out may cause; a group means its instructions,
    bit by bit."""
    return {each.name: each.tolerance for each in PIPELINE}.get(name, 0.0)


def test_every_pass_and_rule_that_can_be_left_out_has_a_case():
    assert set(CASES) == {*optional_passes(), *KIND.rules}


@pytest.mark.cases(thorough=1)
@pytest.mark.parametrize("name", core(further=CASES))
def test_what_is_left_out_changes_results_within_its_tier(name: str, compiled: Compiled) -> None:
    _, whole = compiled(CASES[name])
    _, other = compiled(without(name))
    assert made(Artifact.open(whole), name) > 0 == made(Artifact.open(other), name)
    sides = open_side(str(whole)), open_side(str(other))
    try:
        prompts = [each for each in PROMPTS if len(each.tokens) <= CASES[name].max_model_len]
        found = compare(*sides, prompts, num_greedy=8)
    finally:
        for side in sides:
            side.close()
    assert found.measures.relative_error <= tolerance(name)
    assert found.measures.identical or tolerance(name)
