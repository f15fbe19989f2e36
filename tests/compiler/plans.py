"""Plans of the bundled model, and steps that the interpreter runs them over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from torch.fx import GraphModule

from ingot.artifact.formats import Storage
from ingot.artifact.plan import Limits, Plan
from ingot.compiler.export import export
from ingot.compiler.interpret import new_states, plan_logits, plan_weights
from ingot.compiler.lower import lower
from ingot.models import registry
from ingot.models.counts import module_counts
from ingot.models.model_dir import ModelDir
from ingot.ops.steps import step_inputs
from ingot.passes import runner
from ingot.passes.pipeline import pipeline

MODEL = Path(__file__).parents[2] / "golden" / "models" / "shakespeare"
LIMITS = Limits(
    max_model_len=256, max_num_seqs=4, max_num_batched_tokens=64, max_logit_rows=64, page_size=16
)
PROMPTS = [[(i * 37) % 2048 for i in range(33)], [5], [(i * 91) % 2048 for i in range(17)]]
PAGES = [[3, 7, 1], [2], [9, 4]]


def graph(*, fresh: bool = False) -> GraphModule:
    """The bundled model as exported, in a copy that can be edited; `fresh` exports it again."""
    gm = (_graph.__wrapped__ if fresh else _graph)()
    return GraphModule(gm, deepcopy(gm.graph))


@cache
def _graph() -> GraphModule:
    return export(_module(), registry.load_config(ModelDir.open(MODEL)))


def final_graph(
    dtype: str = "float32",
    disable: Sequence[str] = (),
    integers: Iterable[str] = (),
    *,
    fresh: bool = False,
) -> GraphModule:
    """The bundled model after all passes, in a copy that can be edited; `fresh` exports the
    model and runs them again."""
    make = _final_graph.__wrapped__ if fresh else _final_graph
    gm = make(dtype, tuple(disable), frozenset(integers), fresh=fresh)
    copy = GraphModule(gm, deepcopy(gm.graph))
    copy.meta = {name: dict(value) for name, value in gm.meta.items()}
    return copy


@cache
def _final_graph(
    dtype: str, disable: tuple[str, ...], integers: frozenset[str], *, fresh: bool
) -> GraphModule:
    gm = graph(fresh=fresh)
    passes = pipeline(dtype=dtype, disable=disable, integers=integers)
    runner.run(gm, passes, module_counts(_module()))
    return gm


@cache
def _module() -> torch.nn.Module:
    return registry.build(registry.load_config(ModelDir.open(MODEL)), max_model_len=256)


def plan_for(
    dtype: str = "float32",
    disable: Sequence[str] = (),
    storage: Mapping[str, Storage] = {},
    *,
    int8_states: bool = False,
) -> Plan:
    gm = final_graph(dtype, disable, storage)
    return lower(gm, LIMITS, storage, int8_states=int8_states)


def step_by_step(plan: Plan, read: Callable[[str], Tensor]) -> list[Tensor]:
    """All prompts together, in two steps: the second continues the first and the third prompt."""
    weights, states = cache(plan_weights(read)), new_states(plan, 16)
    first = [PROMPTS[0][:20], PROMPTS[1], PROMPTS[2][:1]]
    inputs = step_inputs(first, [0, 0, 0], PAGES, LIMITS.page_size)
    rows = plan_logits(plan, weights, inputs, states).split([20, 1, 1])
    rest = [PROMPTS[0][20:], PROMPTS[2][1:]]
    inputs = step_inputs(rest, [20, 1], [PAGES[0], PAGES[2]], LIMITS.page_size)
    more = plan_logits(plan, weights, inputs, states).split([13, 16])
    return [torch.cat([rows[0], more[0]]), rows[1], torch.cat([rows[2], more[1]])]


def largest_error(got: Sequence[Tensor], reference: Sequence[Tensor]) -> float:
    errors = [float((g - r).norm() / r.norm()) for g, r in zip(got, reference, strict=True)]
    return max(errors)
