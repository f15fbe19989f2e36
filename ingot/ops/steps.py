"""The inputs of a step, laid out by hand: for the interpreter, checks and tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ingot.artifact.programs import STEP, Program


def step_inputs(
    tokens: Sequence[Sequence[int]],
    contexts: Sequence[int],
    pages: Sequence[Sequence[int]],
    page_size: int,
    program: Program = STEP,
    records: Sequence[int] | None = None,
) -> dict[str, Tensor]:
    """The inputs of a step by name, int32, without a batch; a row is wanted of every token.

    Args:
        tokens: the new tokens of each sequence.
        contexts: how many tokens each has before them.
        pages: where its keys and values lie, those of the new tokens included.
        records: the slot of each sequence; by default its place in the step.
    """
    positions: list[int] = []
    slots: list[int] = []
    spans: list[tuple[int, int, int]] = []
    for new, context, own in zip(tokens, contexts, pages, strict=True):
        spans.append((len(slots), len(slots) + len(new), context))
        places = range(context, context + len(new))
        positions += places
        slots += [own[p // page_size] * page_size + p % page_size for p in places]
    longest = max(map(len, pages), default=0)
    values: dict[str, Sequence[Any]] = {
        "tokens": [token for new in tokens for token in new],
        "positions": positions,
        "slots": slots,
        "spans": spans,
        "page_table": [[*own, *[0] * (longest - len(own))] for own in pages],
        "records": range(len(tokens)) if records is None else records,
    }
    if program.rows:
        values[program.rows.name] = range(len(slots))
    return {name: torch.tensor(list(value), dtype=torch.int32) for name, value in values.items()}


def paged_step(
    rng: torch.Generator, sequences: Sequence[tuple[int, int]], page_size: int
) -> tuple[dict[str, Tensor], int]:
    """The inputs of a step, and how many pages it needs.

    Sequences are given as (rows in this step, context length after it); tokens are all 0. Pages
    are handed out in random order.
    """
    needed = [-(-context // page_size) for _, context in sequences]
    num_pages = sum(needed) + 1
    order = torch.randperm(num_pages, generator=rng).tolist()
    pages = [[order.pop() for _ in range(count)] for count in needed]
    tokens = [[0] * num_rows for num_rows, _ in sequences]
    contexts = [context - num_rows for num_rows, context in sequences]
    return step_inputs(tokens, contexts, pages, page_size), num_pages
