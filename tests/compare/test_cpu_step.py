"""Kernels as they were compiled, run one by one, and alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ingot.artifact.reader import Artifact
from ingot.compare.alone import errors_against, expected
from ingot.compare.bisect import Walk
from ingot.compare.cpu_step import CpuStep
from ingot.compare.kernel_check import WatchedKernels, run_kernels
from ingot.compare.seen import Seen, left
from ingot.compare.steps import steps_of
from ingot.runtime.llm import LLM

PROMPTS = [[5, 17, 23, 42, 7, 8, 9, 10, 11], [3]]


@pytest.fixture(scope="module")
def artifact(shakespeare_artifact: Path) -> Artifact:
    return Artifact.open(shakespeare_artifact)


@pytest.fixture(scope="module")
def kernels(artifact: Artifact) -> WatchedKernels:
    steps = steps_of(PROMPTS, artifact.manifest.limits)
    return run_kernels(artifact, artifact.target, steps)


def test_the_kernels_of_the_bundled_model_do_what_they_should(kernels: WatchedKernels) -> None:
    assert [each.finding for each in Walk(kernels).findings()] == []


def test_the_logits_are_those_of_the_runtime(artifact: Artifact, kernels: WatchedKernels) -> None:
    """Bit by bit, on one thread and on all."""
    with LLM(artifact, max_model_len=64) as llm:
        theirs = [torch.from_numpy(llm.logits(prompt).copy()) for prompt in PROMPTS]
    ours = kernels.seen["prefill"][-1].after["logits"]
    assert torch.equal(ours, torch.cat(theirs)[-len(ours) :])  # type: ignore[arg-type]
    last = torch.stack([each[-1] for each in theirs])
    assert torch.equal(kernels.seen["decode"][-1].after["logits"], last)  # type: ignore[arg-type]


def alone(artifact: Artifact, kernels: WatchedKernels, seen: Seen, number: int) -> Seen:
    """A kernel that has run by itself, in new memory, on what it was given before."""
    plan = kernels.plan
    read = {name for name in seen.work.reads if plan.buffer(name).kind == "weight"}
    addresses = [
        address if buffer.name in read else 0
        for buffer, address in zip(plan.of_kind("weight"), kernels.stored.addresses(), strict=True)
    ]
    step = CpuStep(plan, kernels.code, "kernels.so", addresses, kernels.steps.num_pages)
    try:
        made = step.run_alone(number, kernels.steps.parts["prefill"], seen.before)
    finally:
        step.close()
    return Seen(seen.work, seen.before, made)


def test_a_kernel_runs_alone_without_the_weights_of_the_others(
    artifact: Artifact, kernels: WatchedKernels
) -> None:
    inputs = kernels.steps.parts["prefill"]
    for number, seen in enumerate(kernels.seen["prefill"][:8]):  # a layer, and what is before it
        found = alone(artifact, kernels, seen, number)
        wanted = expected(seen, inputs, kernels.stored.read)
        assert set(found.after) == set(left(seen.work))
        assert not any(each.is_beyond for each in errors_against(found, wanted))


def test_a_kernel_that_is_given_something_else_leaves_something_else(
    artifact: Artifact, kernels: WatchedKernels
) -> None:
    """The control: nothing of the whole step is left over in memory."""
    number = next(
        n for n, seen in enumerate(kernels.seen["prefill"]) if seen.work.kernel == "rms_norm"
    )
    seen = kernels.seen["prefill"][number]
    inputs = kernels.steps.parts["prefill"]
    wanted = expected(seen, inputs, kernels.stored.read)
    reversed_rows = {name: value[torch.arange(9, -1, -1)] for name, value in seen.before.items()}
    other = alone(artifact, kernels, Seen(seen.work, reversed_rows, {}), number)  # type: ignore[arg-type]
    assert any(each.is_beyond for each in errors_against(other, wanted))
