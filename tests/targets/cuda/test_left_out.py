"""A pass or a rule of grouping that is left out changes launches, and results within its tier."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ingot.artifact.reader import Artifact
from ingot.passes.pipeline import PIPELINE, optional_passes
from ingot.targets.cuda.kind import KIND
from tests.support.core import core
from tests.support.made_once import made_once
from tests.support.tiny_models import save_random
from tests.targets.cuda.simulation import FLAGS, compile_sketch, simulated

OPTIONS = {"max_model_len": 64, "max_num_seqs": 8, "max_num_batched_tokens": 32}
# Few tokens, and more than the rows of a tile and of a page.
FEW, MANY = 3, 18
# A model that each makes something of, and the dtype that it is compiled in.
CASES = {
    "group_heads": ("gemma2", "float32"),
    "group_head_products": ("qwen3", "bfloat16"),
    "group_gates": ("qwen3", "bfloat16"),
    "group_residuals": ("qwen3", "bfloat16"),
    "group_norms": ("qwen3", "bfloat16"),
    "group_soft_caps": ("gemma2", "float32"),
    "group_sums": ("gemma2", "float32"),
    "merge_linears": ("qwen3", "bfloat16"),
}


def compiled(name: str, dtype: str, *disabled: str) -> Path:
    """The artifact of a model without those passes and rules, once a test run."""

    def make(place: Path) -> None:
        model_dir = save_random(name, place / "model", tokenizer=True)
        options: dict[str, Any] = {"dtype": dtype, "disable_passes": disabled, **OPTIONS}
        compile_sketch(model_dir, place / "a.ingot", **options)

    return made_once("-".join(("left-out", name, dtype, *disabled)), make) / "a.ingot"


def logits(path: Path, length: int) -> np.ndarray:
    ids = torch.randint(256, (length,), generator=torch.Generator().manual_seed(0))
    with simulated(path) as llm:
        return llm.logits(ids.tolist())


def made(path: Path, name: str) -> int:
    """How often a pass matched, or how many groups of a rule were formed."""
    artifact = Artifact.open(path, flags=FLAGS)
    (target,) = artifact.manifest.targets
    passes = {entry.name: entry.matched for entry in artifact.manifest.ledger}
    groups = {entry.name: entry.formed for entry in target.main.groups}
    return (passes | groups).get(name, 0)


def test_every_pass_and_rule_that_can_be_left_out_has_a_case() -> None:
    assert set(CASES) == {*optional_passes(), *KIND.rules}


@pytest.mark.cases(thorough=2)
@pytest.mark.parametrize(
    ("name", "length"),
    core(further=product(CASES, [FEW]), slow=product(CASES, [FEW, MANY])),
)
def test_what_is_left_out_changes_results_within_its_tier(name: str, length: int) -> None:
    """A group means its instructions, bit by bit; a pass may change what it says."""
    whole, other = compiled(*CASES[name]), compiled(*CASES[name], name)
    assert made(whole, name) > 0 == made(other, name)
    expected, got = logits(whole, length), logits(other, length)
    assert expected.std() > 0.1, "degenerate logits prove nothing"
    tolerance = {each.name: each.tolerance for each in PIPELINE}.get(name, 0.0)
    assert np.linalg.norm(got - expected) <= tolerance * np.linalg.norm(expected)


@pytest.mark.thorough
def test_another_result_is_told_apart() -> None:
    """The control: rows that are rounded between two kernels are others."""
    one, other = (logits(compiled("qwen3", dtype), FEW) for dtype in ("bfloat16", "float32"))
    assert np.linalg.norm(one - other) > 0
