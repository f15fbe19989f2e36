"""Four tests a pass: it fires, a near miss does not, numbers keep, invariants hold."""

from functools import cache

import pytest
import torch

from ingot.passes.dump import op_counts
from ingot.passes.pipeline import PIPELINE
from ingot.passes.runner import run
from tests.passes.cases import CASES, SPELLINGS
from tests.passes.support import before, lab, step
from tests.support.core import core

torch.set_num_threads(1)

MISSES = [(name, body) for name, case in CASES.items() for body in case.misses]


def spelled(value):
    return value if isinstance(value, str) else value.__name__


def test_every_pass_has_a_case():
    assert [s.name for s in PIPELINE] == list(CASES)


@cache
def fired(name):
    """The graph after the pass, its calls before, and what the ledger says."""
    gm = before(lab(CASES[name].fires), name)
    counts = op_counts(gm)
    # verify compares the logits at the step's own tolerance; the runner checks what the step gives
    (entry,) = run(gm, [step(name)], {}, verify=True)
    return gm, counts, entry


@pytest.mark.parametrize("name", CASES)
def test_fires_keeps_numbers_and_leaves_invariants(name):
    case = CASES[name]
    gm, counts, entry = fired(name)
    assert entry.matched == case.count
    after = op_counts(gm)
    assert {op: counts[op] - after[op] for op in case.gone} == case.gone
    assert {op: after[op] - counts[op] for op in case.made} == case.made
    for node in gm.graph.nodes:
        assert node.op == "output" or "val" in node.meta


@pytest.mark.cases(core=8, thorough=16)
@pytest.mark.parametrize("name, body", core(*MISSES[::3], further=MISSES), ids=spelled)
def test_near_miss_does_not_fire(name, body):
    gm = before(lab(body), name)
    counts = op_counts(gm)
    assert step(name).function(gm) == 0
    gm.graph.eliminate_dead_code()
    assert op_counts(gm) == counts


@pytest.mark.cases(core=3)
@pytest.mark.parametrize("name", core(*[*CASES][::3], further=CASES))
def test_second_run_changes_nothing(name):
    if name in ("rewrite_attention", "select_logit_rows"):
        return  # they add inputs, once
    gm, _, _ = fired(name)
    counts = op_counts(gm)
    step(name).function(gm)
    gm.graph.eliminate_dead_code()
    assert op_counts(gm) == counts


@pytest.mark.cases(core=1)
@pytest.mark.parametrize("name, body, count", core(*SPELLINGS[::4], further=SPELLINGS))
def test_other_spellings_fire(name, body, count):
    gm = before(lab(body), name)
    (entry,) = run(gm, [step(name)], {}, verify=True)
    assert entry.matched == count
