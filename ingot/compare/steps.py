"""The steps that an artifact is looked at in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from ingot.artifact.host import available_memory
from ingot.artifact.plan import Limits, Plan
from ingot.errors import UsageError
from ingot.ops.steps import step_inputs
from ingot.runtime.arrays import StepInputs

Inputs = dict[str, Tensor]
Piece = tuple[int, int, int]  # a prompt's number, and which of its tokens: from, to

MOST_TOKENS, LEAST_TOKENS = 2048, 16  # of all prompts
# Every value of every token is kept: those of the model, which has more of them than a plan, those
# of the plan in float32, and what each kernel was given and left.
COPIES = 8
MEMORY_SHARE = 2  # one part in so many of the free memory


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps that kernels are looked at in, over the same pages.

    Attributes:
        prompts: what runs.
        whole: all tokens in one step, whatever the limits: for plans without an arena. All logits
            are wanted.
        parts: the same in steps that keep the limits, by name, and then, where there are caches,
            the last token of each prompt once more, which takes other ways through kernels:
            "prefill", "prefill 2", "decode".
        rows: which tokens of the whole each part has.
        num_pages: of the caches.
    """

    prompts: list[list[int]]
    whole: Inputs
    parts: Mapping[str, Inputs]
    rows: Mapping[str, Tensor]
    num_pages: int


def room_for(plan: Plan) -> int:
    """Number of tokens whose values of a plan fit the free memory."""
    columns = sum(b.columns for b in plan.buffers if b.kind in ("arena", "inner"))
    free = available_memory()
    if free is None or not columns:
        return MOST_TOKENS
    return max(LEAST_TOKENS, min(MOST_TOKENS, free // MEMORY_SHARE // (4 * COPIES * columns)))


def steps_of(
    prompts: Sequence[Sequence[int]],
    limits: Limits,
    room: int = MOST_TOKENS,
    *,
    whole_texts: bool = False,
) -> Steps:
    """Steps of as many of the prompts as there is room for, in tokens; the first is cut if it must
    be. `whole_texts` are not taken apart.

    Raises UsageError where there is no prompt.
    """
    longest, most = limits.max_model_len, limits.max_num_batched_tokens
    chosen = _chosen(prompts, min(longest, most) if whole_texts else longest, limits, room)
    if not chosen:
        raise UsageError("there is no prompt to run", hint="Give one with at least one token.")
    pages = _pages(chosen, limits.page_size)
    starts = [0, *accumulate(map(len, chosen))]

    def inputs(pieces: Sequence[Piece]) -> Inputs:
        tokens = [chosen[n][start:end] for n, start, end in pieces]
        contexts, owners = [start for _, start, _ in pieces], [n for n, *_ in pieces]
        own = [pages[n] for n in owners]
        return step_inputs(tokens, contexts, own, limits.page_size, records=owners)

    wholes = [(n, 0, len(prompt)) for n, prompt in enumerate(chosen)]
    lasts = [(n, end - 1, end) for n, _, end in wholes]
    laid = {"prefill": _within(wholes, most), "decode": _within(lasts, most)}
    if whole_texts:
        laid = {"prefill": _together(wholes, most)}
    parts, rows = dict[str, Inputs](), dict[str, Tensor]()
    for name, each in laid.items():
        for number, part in enumerate(each, 1):
            label = name if number == 1 else f"{name} {number}"
            parts[label] = inputs(part)
            parts[label]["logit_rows"] = parts[label]["logit_rows"][-limits.max_logit_rows :]
            rows[label] = torch.cat([torch.arange(a, b) + starts[n] for n, a, b in part])
    num_pages = 1 + sum(map(len, pages))
    return Steps(chosen, inputs(wholes), parts, rows, num_pages)


def _chosen(
    prompts: Sequence[Sequence[int]], longest: int, limits: Limits, room: int
) -> list[list[int]]:
    chosen: list[list[int]] = []
    for prompt in prompts:
        cut = list(prompt[:longest])
        cut = cut if chosen else cut[:room]
        if cut and len(cut) <= room and len(chosen) < limits.max_num_seqs:
            chosen.append(cut)
            room -= len(cut)
    return chosen


def _pages(prompts: Sequence[Sequence[int]], page_size: int) -> list[list[int]]:
    """The pages of each prompt, not in order. Page 0 stays free: what is written into a slot that
    is none of theirs shows there."""
    counts = [-(-len(prompt) // page_size) for prompt in prompts]
    ends = accumulate(counts, initial=1)
    return [list(range(end, end + count))[::-1] for end, count in zip(ends, counts, strict=False)]


def _within(pieces: Sequence[Piece], most: int) -> list[list[Piece]]:
    """The pieces in parts of at most so many tokens, cut where they must be."""
    parts: list[list[Piece]] = []
    room = 0
    for number, start, end in pieces:
        while start < end:
            if not room:
                parts.append([])
                room = most
            stop = min(end, start + room)
            parts[-1].append((number, start, stop))
            room -= stop - start
            start = stop
    return parts


def _together(pieces: Sequence[Piece], most: int) -> list[list[Piece]]:
    """The pieces, whole, in parts of at most so many tokens."""
    parts: list[list[Piece]] = []
    room = 0
    for piece in pieces:
        size = piece[2] - piece[1]
        if not parts or size > room:
            parts.append([])
            room = most
        parts[-1].append(piece)
        room -= size
    return parts


def fill(arrays: StepInputs, inputs: Mapping[str, Tensor]) -> None:
    """Fills the arrays that a program has of a step. Tables that are narrower leave zeros."""
    for name, values in inputs.items():
        if name not in arrays:
            continue
        arrays[name][...] = 0
        arrays[name][tuple(map(slice, values.shape))] = values.numpy()
    sizes = (len(inputs[name]) for name in ("tokens", "spans", "logit_rows"))
    arrays.num_tokens, arrays.num_seqs, arrays.num_rows = sizes
