"""Golden rows: what the float32 reference returns in a program that gives no logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from torch.fx import GraphModule

from ingot.artifact.golden import GoldenModel
from ingot.artifact.golden_rows import ROWS_FORMAT, GoldenRow, GoldenRows, RowsTolerance
from ingot.artifact.programs import PROGRAMS
from ingot.compiler.golden import DRAWS, MEAN, ReferencePrompt, drawn
from ingot.compiler.reference import ReadParameter
from ingot.compiler.rounding import Rounded, SideBySide
from ingot.errors import CompileError


def golden_rows(
    program: str,
    gm: GraphModule,
    read: ReadParameter,
    prompts: Sequence[ReferencePrompt],
    model: GoldenModel,
    formats: Mapping[str, Sequence[Rounded]],
) -> GoldenRows:
    """The rows of the last tokens of some prompts, or of whole texts, and what each number format
    may be off by.

    `formats` has of each the ways in which targets round. Raises CompileError where the rows are
    not finite.
    """
    ways = [way for each in formats.values() for way in each]
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
    noises = iter([float((rows - exact).norm() / exact.norm()) for rows in rounded])
    tolerances = {
        name: tolerance(max(islice(noises, DRAWS * len(each)))) for name, each in formats.items()
    }
    found = [
        GoldenRow(list(prompt.tokens), [float(f"{value:.7g}") for value in row], prompt.text)
        for prompt, row in zip(prompts, exact.tolist(), strict=True)
    ]
    return GoldenRows(ROWS_FORMAT, program, model, tolerances, found)


def tolerance(noise: float) -> RowsTolerance:
    """Tolerance of a number format whose own rounding makes this noise."""
    return RowsTolerance(float(f"{noise:.3g}"), float(f"{MEAN * noise:.3g}"))
