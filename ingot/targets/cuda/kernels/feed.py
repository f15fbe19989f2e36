"""Fills in the tokens of a step that the host did not know when it submitted the step."""

import triton
import triton.language as tl


@triton.jit
def feed_tokens(tokens, drawn_tokens, N, BLOCK: tl.constexpr):
    """~d in `tokens` [N] becomes drawn_tokens[d], both int32; grid (N / BLOCK,)."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(tokens + at, mask=at < N, other=0)
    drawn = tl.load(drawn_tokens + ~token, mask=token < 0, other=0)
    tl.store(tokens + at, tl.where(token < 0, drawn, token), mask=at < N)
