"""Edits rows of logits in place, token by token, before they are drawn from.

The arithmetic is that of `edit` in `ingot.runtime.devices.numpy_sampler`, to the bit. So this
kernel is built without fused operations.
"""

import triton
import triton.language as tl

from ingot.targets.cuda.kernels.rounding import rounded


@triton.jit
def edit_logits(
    logits, edit_rows, edit_copies, edit_restricted, edit_repetitions, edit_frequencies,
    edit_presences, edit_lists, edit_tokens, edit_values,
    V: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Changes row `edit_rows` [E] of float32 logits [R, V]; grid (E,). No row comes twice.

    Args:
        edit_copies: int32 [E], the row that gets the logits before all edits; -1 is none.
        edit_restricted: int32 [E], whether only the allowed tokens are left.
        edit_repetitions, edit_frequencies, edit_presences: float32 [E], the penalties.
        edit_lists: int32 [E, 5], where its lists begin and the last one ends: allowed, biased,
            seen, banned.
        edit_tokens: int32, the tokens of all lists.
        edit_values: float32, beside biased tokens their bias, and beside those seen how often
            they were generated. Beside allowed tokens there is room for their logits.
    """
    i = tl.program_id(0)
    row = logits + tl.load(edit_rows + i).to(tl.int64) * V
    allowed, biased = tl.load(edit_lists + 5 * i), tl.load(edit_lists + 5 * i + 1)
    seen, banned = tl.load(edit_lists + 5 * i + 2), tl.load(edit_lists + 5 * i + 3)
    end = tl.load(edit_lists + 5 * i + 4)
    copy = tl.load(edit_copies + i)
    if copy >= 0:
        copy_row(row, logits + copy.to(tl.int64) * V, V, BLOCK)
    if tl.load(edit_restricted + i) != 0:
        restrict(row, edit_tokens, edit_values, allowed, biased, V, BLOCK)
    add_biases(row, edit_tokens, edit_values, biased, seen, BLOCK)
    tl.debug_barrier()  # what one thread has written, another one reads
    penalize(
        row, edit_tokens, edit_values, seen, banned,
        tl.load(edit_repetitions + i), tl.load(edit_frequencies + i),
        tl.load(edit_presences + i), BLOCK,
    )  # fmt: skip
    tl.debug_barrier()
    for start in range(banned, end, BLOCK):
        at, mask = part(start, end, BLOCK)
        token = tl.load(edit_tokens + at, mask=mask, other=0)
        tl.store(row + token, tl.full([BLOCK], float("-inf"), tl.float32), mask=mask)


@triton.jit
def copy_row(row, to, V: tl.constexpr, BLOCK: tl.constexpr):
    for start in range(0, V, BLOCK):
        at, mask = part(start, V, BLOCK)
        tl.store(to + at, tl.load(row + at, mask=mask), mask=mask)
    tl.debug_barrier()  # what one thread has read, another one changes


@triton.jit
def restrict(row, tokens, values, begin, end, V: tl.constexpr, BLOCK: tl.constexpr):
    """Leaves nothing of a row but its allowed tokens; their logits wait beside them."""
    for start in range(begin, end, BLOCK):
        at, mask = part(start, end, BLOCK)
        token = tl.load(tokens + at, mask=mask, other=0)
        tl.store(values + at, tl.load(row + token, mask=mask), mask=mask)
    tl.debug_barrier()
    for start in range(0, V, BLOCK):
        at, mask = part(start, V, BLOCK)
        tl.store(row + at, tl.full([BLOCK], float("-inf"), tl.float32), mask=mask)
    tl.debug_barrier()
    for start in range(begin, end, BLOCK):
        at, mask = part(start, end, BLOCK)
        token = tl.load(tokens + at, mask=mask, other=0)
        tl.store(row + token, tl.load(values + at, mask=mask), mask=mask)
    tl.debug_barrier()


@triton.jit
def add_biases(row, tokens, values, begin, end, BLOCK: tl.constexpr):
    for start in range(begin, end, BLOCK):
        at, mask = part(start, end, BLOCK)
        token = tl.load(tokens + at, mask=mask, other=0)
        x = tl.load(row + token, mask=mask) + tl.load(values + at, mask=mask)
        tl.store(row + token, x, mask=mask)


@triton.jit
def penalize(row, tokens, values, begin, end, repetition, frequency, presence, BLOCK: tl.constexpr):
    """Makes tokens that were seen less likely; each comes once."""
    for start in range(begin, end, BLOCK):
        at, mask = part(start, end, BLOCK)
        token = tl.load(tokens + at, mask=mask, other=0)
        times = tl.load(values + at, mask=mask, other=0.0)
        x = tl.load(row + token, mask=mask, other=0.0)
        x = tl.where(x > 0, tl.div_rn(x, tl.broadcast_to(repetition, [BLOCK])), x * repetition)
        x = x - rounded(times * frequency)
        x = x - tl.where(times > 0, presence, 0.0)
        tl.store(row + token, x, mask=mask)


@triton.jit
def part(start, end, BLOCK: tl.constexpr):
    """Places of a list from `start` on, and which of them there are."""
    at = start + tl.arange(0, BLOCK)
    return at, at < end
