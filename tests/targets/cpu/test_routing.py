"""Which experts kernels compute, where scores are equal, and where all rows pick the same."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ingot.compiler.interpret import Value
from ingot.ops.scaled import Scaled
from tests.targets.cpu.cases import MORE, TARGETS_OF, at_levels, unit
from tests.targets.cpu.experts import INTEGERS, PLAIN
from tests.targets.cpu.test_kernels import check
from tests.targets.cpu.units import Unit

# More than one picks one expert; and more rows than a block.
SEQUENCES = [(1, 1), (9, 20), (130, 130)]
STARVED, WANTED = 1, 0
MIXTURES = ("expert_gate", "expert_gate_quantize", "expert_sum")
CASES = {each.name: each for each in (*PLAIN, *INTEGERS)}


def of_routers(kernels: Unit) -> list[str]:
    """What the routers read."""
    names = [i.inputs["logits"] for i in kernels.plan.instructions if i.op == "route"]
    assert names
    return names


def level_biases(kernels: Unit) -> Unit:
    """The same kernels with equal biases in all routers."""
    routers = [i for i in kernels.plan.instructions if i.op == "route"]
    names = [i.inputs["bias"] for i in routers if "bias" in i.inputs]
    assert names
    return kernels.with_weights({n: torch.full_like(kernels.weights[n], 0.25) for n in names})


@at_levels("f32", "bf16", f"{MORE}bf16")
def test_equal_scores_go_to_the_lower_expert(kind: str, target: str) -> None:
    """Of experts and of groups: logits are 0 or 1, and those of one row are all equal."""
    kernels = level_biases(unit(kind, target))
    rng = torch.Generator().manual_seed(0)
    step = kernels.step(rng, SEQUENCES)
    values = kernels.draw(rng, step)
    for name in of_routers(kernels):
        logits = values[name]
        assert isinstance(logits, Tensor)
        logits.copy_(logits > 0)
        logits[2] = 0
    check(kernels, step, values, kernels.run(values, step), only=("route",))


def lost(weight: Value) -> Value:
    """Stacked matrices without numbers for the expert that nobody is to pick."""
    if isinstance(weight, Scaled):
        scales = weight.scales.clone()
        scales[STARVED] = math.nan
        return replace(weight, scales=scales)
    weight = weight.clone()
    weight[STARVED] = math.nan
    return weight


@at_levels(*TARGETS_OF)
@pytest.mark.parametrize("starved", [True, False])
def test_an_expert_that_nobody_picks_is_not_computed(kind: str, target: str, starved: bool) -> None:
    """All rows pick another one. The control: somebody picks it."""
    kernels = unit(kind, target)
    mixtures = {n for n in kernels.weights if ".experts." in n and some_are_left(n)}
    assert mixtures
    kernels = kernels.with_weights({name: lost(kernels.weights[name]) for name in mixtures})
    rng = torch.Generator().manual_seed(0)
    step = kernels.step(rng, SEQUENCES)
    values = kernels.draw(rng, step)
    for name in {f"{case_of(name)}.logits" for name in mixtures}:
        values[name][:, WANTED] = 30.0
        values[name][:, STARVED] = -30.0 if starved else 40.0
    after = kernels.run(values, step)
    if starved:  # rounding what is no number is left to each kernel
        check(kernels, step, values, after, only=MIXTURES)
    for name in {f"{case_of(name)}.sum" for name in mixtures}:
        assert bool(after[name].isfinite().all()) is starved, name


def case_of(name: str) -> str:
    return name.split(".")[0]


def some_are_left(name: str) -> bool:
    """Whether a mixture has experts that a row does not pick."""
    mixture = CASES[case_of(name)]
    return mixture.picks < mixture.count
