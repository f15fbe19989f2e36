"""Kernels that the gates on machine code are tried with: some are spelled badly on purpose."""

import triton
import triton.language as tl


@triton.jit
def multiply(w, x, out, M, K: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr):
    """out [M, N] = x [M, K] w [N, K]^T, where the weights are on the left."""
    rows = tl.program_id(0) * BN + tl.arange(0, BN)
    tokens = tl.arange(0, BM)
    columns = tl.arange(0, BK)
    sums = tl.zeros((BN, BM), tl.float32)
    for k in range(0, K, BK):
        weights = tl.load(w + rows[:, None] * K + k + columns[None, :])
        left = tokens[None, :] < M
        values = tl.load(x + tokens[None, :] * K + k + columns[:, None], mask=left, other=0.0)
        sums = tl.dot(weights, values, sums)
    N = tl.num_programs(0) * BN
    tl.store(out + tokens[None, :] * N + rows[:, None], sums, mask=tokens[None, :] < M)


@triton.jit
def half_sums(w, x, out, M, K: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr):
    """The same of float16, added up in float16."""
    rows = tl.program_id(0) * BN + tl.arange(0, BN)
    tokens = tl.arange(0, BM)
    columns = tl.arange(0, BK)
    sums = tl.zeros((BN, BM), tl.float16)
    for k in range(0, K, BK):
        weights = tl.load(w + rows[:, None] * K + k + columns[None, :])
        left = tokens[None, :] < M
        values = tl.load(x + tokens[None, :] * K + k + columns[:, None], mask=left, other=0.0)
        sums = tl.dot(weights, values, sums, out_dtype=tl.float16)
    N = tl.num_programs(0) * BN
    tl.store(out + tokens[None, :] * N + rows[:, None], sums, mask=tokens[None, :] < M)


@triton.jit
def tokens_left(
    w, x, out, M, K: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr
):
    """The same with the tokens on the left: too few rows for the newer matrix instructions."""
    rows = tl.program_id(0) * BN + tl.arange(0, BN)
    tokens = tl.arange(0, BM)
    columns = tl.arange(0, BK)
    sums = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        weights = tl.load(w + rows[None, :] * K + k + columns[:, None])
        left = tokens[:, None] < M
        values = tl.load(x + tokens[:, None] * K + k + columns[None, :], mask=left, other=0.0)
        sums = tl.dot(values, weights, sums)
    N = tl.num_programs(0) * BN
    tl.store(out + tokens[:, None] * N + rows[None, :], sums, mask=tokens[:, None] < M)


@triton.jit
def attend(q, k, v, out, KEYS, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """out [BM, D] = (q k^T) v over keys, without a softmax: only the products matter here."""
    rows, columns, keys = tl.arange(0, BM), tl.arange(0, D), tl.arange(0, BN)
    queries = tl.load(q + rows[:, None] * D + columns[None, :])
    sums = tl.zeros((BM, D), tl.float32)
    for start in range(0, KEYS, BN):
        at = (start + keys)[:, None] * D + columns[None, :]
        left = (start + keys)[:, None] < KEYS
        scores = tl.dot(queries, tl.load(k + at, mask=left, other=0.0).T)
        sums = tl.dot(scores.to(v.dtype.element_ty), tl.load(v + at, mask=left, other=0.0), sums)
    tl.store(out + rows[:, None] * D + columns[None, :], sums)


@triton.jit
def crowded(x, out, N, BLOCK: tl.constexpr):
    """out = x sorted by nothing but need: more values than a thread has registers."""
    at = tl.arange(0, BLOCK)
    first = tl.load(x + at).to(tl.float32)
    second = tl.load(x + BLOCK + at).to(tl.float32)
    for _ in range(0, N):
        first, second = first * second + 1.0, second * first - 1.0
    tl.store(out + at, first + second)
