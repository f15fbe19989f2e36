"""The launches that draw and score tokens by the logits of a step, and the arrays they take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ingot.artifact.architectures import Architecture
from ingot.artifact.launches import (
    DRAWS,
    EDITED,
    SCORED,
    Constant,
    DrawArray,
    Extent,
    LaunchArgument,
)
from ingot.artifact.plan import Limits, Plan
from ingot.artifact.programs import LOGITS
from ingot.targets.cuda.call import ONE, Call, Choice
from ingot.targets.cuda.operands import Pointer, Size

NUM_WARPS = 8
# A tile of logits: each thread loads four neighbours of each of its rows, or two where the code
# for four needs more registers than there are.
ROWS, COLUMNS = 4, 4 * 32 * NUM_WARPS
NARROW = frozenset({120})
BLOCK = 1024  # tokens that are edited at once
# Tokens in the lists of edits, for each sequence of the largest step; one may have more than that.
LISTED = 4096
NUM_LISTS = 4  # allowed, biased, seen, banned
LIKELIEST = 20  # tokens that are found beside one that is scored; vLLM gives as many, too
FED = 128  # tokens of a step that a program looks at


def columns_of(architecture: Architecture) -> int:
    """Columns of a tile. Draws do not depend on it."""
    return COLUMNS // 2 if architecture.number in NARROW else COLUMNS


def arrays(limits: Limits, columns: int = COLUMNS) -> tuple[DrawArray, ...]:
    """Arrays that drawing reads and fills. Those that are copied together lie together."""
    count, scores = limits.max_num_seqs, _most_scores(limits)
    asked, drawn = (*_draws(count), *_edits(count), *_asked(scores)), _drawn(count)
    return (*asked, *drawn, *_scored(scores), *_room(count, ROWS * columns))


def feed(plan: Plan) -> Call:
    """The launch that begins a step: it fills in the tokens that the step before has drawn."""
    choice = Choice(
        function="feed.feed_tokens",
        constants={"BLOCK": FED},
        grid=(Extent(size="N", per=FED), ONE, ONE),
    )
    names = plan.buffer("tokens").name, "drawn_tokens"
    pointers = {name: Pointer(LaunchArgument(buffer=name), "int32") for name in names}
    return Call({**pointers, "N": Size("N")}, (choice,))


def calls(plan: Plan, columns: int = COLUMNS) -> tuple[Call, ...]:
    """The launches, in order: edits of rows, draws from them, and log-probabilities.

    `columns`: of a tile of logits.
    """
    count, scores = plan.limits.max_num_seqs, _most_scores(plan.limits)
    tiles = {"V": plan.buffer(LOGITS).columns, "ROWS": ROWS, "COLUMNS": columns}
    edit = _choice("edit.edit_logits", {"V": tiles["V"], "BLOCK": BLOCK}, EDITED)
    draw = _choice("draw.draw_tokens", tiles, DRAWS)
    score = _choice("score.score_tokens", {**tiles, "LISTED": 1 + LIKELIEST}, SCORED)
    drawn = tokens, _statuses = _drawn(count)
    return (
        Call(_pointers(_edits(count)), (edit,)),
        Call(_pointers((*_draws(count), *drawn, *_room(count, ROWS * columns))), (draw,)),
        Call(_pointers((tokens, *_asked(scores), *_scored(scores))), (score,)),
    )


def _most_scores(limits: Limits) -> int:
    """The most tokens that are scored: those drawn, and one of the prompt beside each row."""
    return limits.max_num_seqs + limits.max_logit_rows


def _choice(function: str, constants: Mapping[str, Constant], size: str) -> Choice:
    """A program for each of so many."""
    return Choice(
        function=function,
        constants=constants,
        grid=(Extent(size=size), ONE, ONE),
        num_warps=NUM_WARPS,
        fused=False,
    )


def _draws(count: int) -> tuple[DrawArray, ...]:
    return (
        DrawArray(name="draw_rows", dtype="int32", shape=(count,)),
        DrawArray(name="draw_scales", dtype="float32", shape=(count,)),
        DrawArray(name="draw_top_ks", dtype="int32", shape=(count,)),
        DrawArray(name="draw_min_ps", dtype="float32", shape=(count,)),
        DrawArray(name="draw_top_ps", dtype="float64", shape=(count,)),
        DrawArray(name="draw_bits", dtype="int64", shape=(count,)),
        DrawArray(name="draw_edited", dtype="int32", shape=(count,)),
    )


def _edits(count: int) -> tuple[DrawArray, ...]:
    return (
        DrawArray(name="edit_rows", dtype="int32", shape=(count,)),
        DrawArray(name="edit_copies", dtype="int32", shape=(count,)),
        DrawArray(name="edit_restricted", dtype="int32", shape=(count,)),
        DrawArray(name="edit_repetitions", dtype="float32", shape=(count,)),
        DrawArray(name="edit_frequencies", dtype="float32", shape=(count,)),
        DrawArray(name="edit_presences", dtype="float32", shape=(count,)),
        DrawArray(name="edit_lists", dtype="int32", shape=(count, NUM_LISTS + 1)),
        DrawArray(name="edit_tokens", dtype="int32", shape=(count * LISTED,)),
        DrawArray(name="edit_values", dtype="float32", shape=(count * LISTED,)),
    )


def _asked(count: int) -> tuple[DrawArray, ...]:
    return (DrawArray(name="score_asked", dtype="int32", shape=(count, 3)),)


def _drawn(count: int) -> tuple[DrawArray, ...]:
    return (
        DrawArray(name="drawn_tokens", dtype="int32", shape=(count,)),
        DrawArray(name="drawn_statuses", dtype="int32", shape=(count,)),
    )


def _scored(count: int) -> tuple[DrawArray, ...]:
    return (
        DrawArray(name="scored_tokens", dtype="int32", shape=(count, 1 + LIKELIEST)),
        DrawArray(name="scored_logits", dtype="float32", shape=(count, 1 + LIKELIEST)),
        DrawArray(name="scored_sums", dtype="int64", shape=(count, 2)),
    )


def _room(count: int, tile: int) -> tuple[DrawArray, ...]:
    return (
        DrawArray(name="listed_logits", dtype="float32", shape=(count, tile), on_device=True),
        DrawArray(name="listed_tokens", dtype="int32", shape=(count, tile), on_device=True),
    )


def _pointers(arrays: Iterable[DrawArray]) -> dict[str, Pointer]:
    logits = {LOGITS: Pointer(LaunchArgument(buffer=LOGITS), "float32")}
    return logits | {a.name: Pointer(LaunchArgument(buffer=a.name), a.dtype) for a in arrays}
