"""Artifacts in integers, against the numbers that their integers stand for.

Rounding the weights of a random model to int4 moves its logits by 10 to 40 %: a fault could hide
in that. So the rounding is measured by itself, matrix by matrix, and logits are held against the
plain module with the rounded numbers. The plain module is held against `transformers` first.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from torch import nn

from ingot.artifact.plan import Buffer
from ingot.compare.stored import StoredWeights
from ingot.ops.scaled import Scaled
from ingot.runtime.llm import LLM
from tests.end_to_end.support import (
    check_rows,
    judge,
    judged_logits,
    random_tokens,
    relative_error,
)
from tests.support.checkpoints import module_logits, plain_module

MATRIX_LIMITS = {8: 1e-2, 4: 1e-1}  # relative errors of rounding, by bits
LIMIT = 4e-2


def stored_integers(llm: LLM) -> Iterator[tuple[Buffer, Scaled]]:
    """The matrices of an artifact that are in integers."""
    plan = llm.artifact.plan
    weights = StoredWeights(llm.artifact, llm.artifact.target, plan)
    for buffer in plan.of_kind("weight"):
        if buffer.format.is_scaled:
            matrix = weights.read(buffer)
            assert isinstance(matrix, Scaled)
            yield buffer, matrix


def names_of(buffer: Buffer) -> tuple[str, ...]:
    """The parameters whose rows a weight has."""
    return buffer.sources or (buffer.name,)


def check_integers(
    llm: LLM, model_dir: Path, lengths: tuple[int, ...], limit: float = LIMIT
) -> None:
    """Every matrix is near its own, and logits are those of the numbers."""
    module = judged_module(model_dir)
    for buffer, matrix in stored_integers(llm):
        parameters = [module.get_parameter(name) for name in names_of(buffer)]
        put_numbers(parameters, matrix.dequantize(), MATRIX_LIMITS[buffer.format.bits])
    check_rows(llm, partial(module_logits, module), module, lengths, limit)


def judged_module(model_dir: Path) -> nn.Module:
    """The plain module, which computes what `transformers` does."""
    module, tokens = plain_module(model_dir), random_tokens(40)
    expected = judged_logits(judge(model_dir), tokens)
    assert relative_error(module_logits(module, tokens), expected) <= 1e-5
    return module


def put_numbers(parameters: list[nn.Parameter], numbers: torch.Tensor, limit: float) -> None:
    """Sets parameters to the rows of a matrix that was rounded from theirs."""
    rows = numbers.split([len(each) for each in parameters])
    with torch.no_grad():
        for parameter, rounded in zip(parameters, rows, strict=True):
            assert relative_error(rounded.numpy(), parameter.float().numpy()) <= limit
            parameter.copy_(rounded)
