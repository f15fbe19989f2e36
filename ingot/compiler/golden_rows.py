"""Golden rows: what the float32 reference returns in a program that gives no logits."""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import GraphModule

from ingot.artifact.golden_rows import ROWS_FORMAT, GoldenRow, GoldenRows
from ingot.artifact.programs import PROGRAMS
from ingot.compiler.golden import MEAN, ReferencePrompt, drawn
from ingot.compiler.reference import ReadParameter
from ingot.compiler.rounding import Rounded, SideBySide
from ingot.errors import CompileError


def golden_rows(
    program: str,
    gm: GraphModule,
    read: ReadParameter,
    prompts: Sequence[ReferencePrompt],
    ways: Sequence[Rounded],
) -> GoldenRows:
    """The rows of the last tokens of some prompts, or of whole texts, and what the ways to round
    may be off by.

    Raises CompileError where they are not finite.
    """
    tokens = [prompt.tokens for prompt in prompts]
    # A row of a whole text is made of all of its tokens.
    last = [] if PROGRAMS[program].gives == "S" else [len(each) - 1 for each in tokens]
    runs = SideBySide(gm, read, tokens, drawn(ways), first=last).run()
    exact, *rounded = (rows[0].double() for rows in runs)
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
