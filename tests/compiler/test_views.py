"""Views of views: columns of columns and heads of reshapes point to the right elements."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch.fx import GraphModule

from ingot.artifact.plan import Limits
from ingot.artifact.traits import TRAITS
from ingot.compiler.lower import lower
from ingot.compiler.verify import PlanChecker
from ingot.passes.pipeline import pipeline
from ingot.passes.runner import run
from tests.passes.support import attend, flat, heads, lab, step

torch.set_num_threads(1)

LIMITS = Limits(
    max_model_len=32, max_num_seqs=2, max_num_batched_tokens=16, max_logit_rows=8, page_size=4
)


def one_head(x):
    return x.reshape(1, x.shape[1], 1, 8)


VIEWS = {
    "columns": (lambda y: one_head(y[..., 4:12]), 4),
    "columns of columns": (lambda y: one_head(y[..., 4:20][..., 6:14]), 10),
    "a head": (lambda y: heads(y)[:, :, 2:3], 16),
    "a head of heads": (lambda y: heads(y)[:, :, 1:3][:, :, 1:2], 16),
    "columns of heads": (
        lambda y: one_head(heads(y)[:, :, 1:3].reshape(1, y.shape[1], 16)[..., 3:11]), 11,
    ),
}  # fmt: skip


@pytest.mark.cases(core=2)
@pytest.mark.parametrize("name", VIEWS)
def test_a_view_starts_at_its_element(name):
    view, offset = VIEWS[name]

    def body(lab, x, positions):
        queries, keys = heads(lab.q(x)), lab.k(x)
        return flat(attend(queries, view(keys), keys[..., :8].reshape(1, -1, 1, 8)))

    gm = lab(body)
    reference = GraphModule(gm, deepcopy(gm.graph))
    run(gm, [step(each.name) for each in pipeline()], {})
    plan = lower(gm, LIMITS)
    write = next(i for i in plan.instructions if TRAITS[i.op].mutates)
    keys = plan.buffer(write.inputs["k"])
    merged = plan.root(keys.name)
    assert (keys.offset, keys.row_stride) == (24 + offset, merged.columns) == (24 + offset, 48)
    PlanChecker(reference).check_lowered(gm, plan)
