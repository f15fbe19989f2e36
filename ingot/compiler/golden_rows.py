"""Golden rows: what the float32 reference returns in a program that gives no logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx import GraphModule

from ingot.artifact.golden_rows import ROWS_FORMAT, GoldenRow, GoldenRows
from ingot.compiler.golden import MEAN, ReferencePrompt, drawn
from ingot.compiler.reference import ReadParameter
from ingot.compiler.rounding import Rounded, rounded_logits
from ingot.errors import CompileError


def golden_rows(
    program: str,
    gm: GraphModule,
    read: ReadParameter,
    prompts: Sequence[ReferencePrompt],
    ways: Sequence[Rounded],
) -> GoldenRows:
    """The rows of the last tokens of some prompts, and what the ways to round may be off by.

    Raises CompileError where they are not finite.
    """
    tokens = [prompt.tokens for prompt in prompts]
    last = [len(each) - 1 for each in tokens]
    exact, *rounded = (
        torch.cat(rows).double() for rows in rounded_logits(gm, read, tokens, drawn(ways), last)
    )
    if not bool(exact.isfinite().all()):
        raise CompileError(
            f"what the float32 reference returns in {program} is not finite",
            hint="Some weights are probably too large. Check the model in float32.",
        )
    noise = max(float((rows - exact).norm() / exact.norm()) for rows in rounded)
    found = [
        GoldenRow(list(ids), [float(f"{value:.7g}") for value in row])
        for ids, row in zip(tokens, exact.tolist(), strict=True)
    ]
    return GoldenRows(
        ROWS_FORMAT, program, float(f"{noise:.3g}"), float(f"{MEAN * noise:.3g}"), found
    )
