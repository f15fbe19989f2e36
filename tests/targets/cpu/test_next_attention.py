"""What products are told to fetch for the attention behind them, beside a list made here."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.targets.cpu.native import TARGETS, built

HEADS, PAGE, SIZE = 4, 16, 8  # KV heads, tokens of a page, and bfloat16 elements of a head
HEAD_BYTES = PAGE * SIZE * 2
PAGE_BYTES = HEADS * HEAD_BYTES
LINE = 64
INPUTS = 256  # of products
STRIDE = 8  # pages of a row of the page table
KEYS, VALUES = 1 << 30, 1 << 31  # nobody reads there
SOURCE = f"""
#include "kernels.h"
#define EXPORT extern "C" __attribute__((visibility("default")))
using namespace ingot;
static NextAttention attention;
static Team team(int rank, int size) {{
  alignas(64) static char scratch[all_scratch_bytes];
  return {{rank, size, scratch, nullptr, nullptr, &attention}};
}}
template <class T>
static T* at(long place) {{ return reinterpret_cast<T*>(place); }}
template <class T>
static Rows<T> zeros() {{
  alignas(64) static float memory[1 << 18];
  return {{reinterpret_cast<T*>(memory), {INPUTS}}};
}}
template <int window>
static void look(int rank, int size, Sequences sequences) {{
  const auto keys = at<bf16>({KEYS}), values = at<bf16>({VALUES});
  Cache<bf16, {HEADS}, {PAGE}, {SIZE}> cache{{keys, values, nullptr, nullptr}};
  look_ahead<window>(team(rank, size), cache, sequences);
}}
EXPORT void look(int window, int rank, int size, int count, const int* spans, const int* table) {{
  const Sequences sequences{{count, spans, table, {STRIDE}}};
  window > 0 ? look<20>(rank, size, sequences) : look<0>(rank, size, sequences);
}}
EXPORT void look_at_latent(int count, const int* spans, const int* table) {{
  LatentCache<bf16, {PAGE}, {SIZE}, {SIZE}, {SIZE}> cache{{at<bf16>({KEYS}), nullptr}};
  look_ahead<0>(team(0, 1), cache, {{count, spans, table, {STRIDE}}});
}}
EXPORT void away() {{ look_away(team(0, 1)); }}
EXPORT long take(int lines) {{
  const Lines found = attention.take(lines);
  return found.stride == {LINE} ? reinterpret_cast<long>(found.next) : -found.stride;
}}
template <int bits>
static void multiply_integers(Slice slice) {{
  quantized_linear<bits, 128, 128, {INPUTS}, 64>(
      slice, zeros<const std::int8_t>(), zeros<const float>(), zeros<const std::uint8_t>().data,
      nullptr, Rows<const float>{{}}, zeros<float>());
}}
EXPORT void multiply(int bits, int rows) {{
  const Slice slice{{team(0, 1), {{0, rows}}}};
  if (bits == 4) return multiply_integers<4>(slice);
  if (bits == 8) return multiply_integers<8>(slice);
  linear<bf16, float, {INPUTS}, 64>(slice, zeros<const bf16>(), zeros<const bf16>().data, nullptr,
                                    Rows<const float>{{}}, zeros<float>());
}}
EXPORT long take_of_nobody() {{ return take_lines(nullptr, 5).stride; }}
"""
WINDOW = 20
MOST_QUERIES = 8  # of a sequence that waits for memory
NOTHING = 0

# Of each sequence: tokens before its queries, and queries.
sequences_of_a_step = st.lists(
    st.tuples(st.integers(0, 90), st.integers(0, MOST_QUERIES + 2)).filter(any),
    max_size=4,
)


@cache
def library(target: str = "cpu:portable") -> ctypes.CDLL:
    found = ctypes.CDLL(str(built((("step.cpp", SOURCE),), target).result()))
    found.take.restype = found.take_of_nobody.restype = ctypes.c_long
    return found


def arrays(sequences: Sequence[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """Spans, and a page table without order; pages that nobody sees lie where there is nothing."""
    ends = np.cumsum([queries for _, queries in sequences], dtype=np.int32)
    spans = [(end - n, end, before) for end, (before, n) in zip(ends, sequences, strict=True)]
    pages = np.random.default_rng(3).permutation(max(len(sequences), 1) * STRIDE)
    table = pages.astype(np.int32).reshape(-1, STRIDE)
    for row, (before, queries) in zip(table, sequences, strict=False):
        row[-(-(before + queries) // PAGE) :] = -1_000_000
    return np.array(spans, np.int32).reshape(-1, 3), table


def share(rank: int, size: int) -> tuple[int, int]:
    """The first head of a thread, and how many it has."""
    each, more = divmod(HEADS, size)
    return rank * each + min(rank, more), each + (rank < more)


def runs(
    sequences: Sequence[tuple[int, int]], table: np.ndarray, window: int, rank: int, size: int
) -> Iterator[tuple[int, int]]:
    """Where keys and values lie side by side, and how many bytes."""
    head, count = share(rank, size)
    for row, (before, queries) in zip(table, sequences, strict=False):
        if queries > MOST_QUERIES:
            continue
        seen = {
            key // PAGE
            for query in range(before, before + queries)
            for key in range(max(0, query - window + 1) if window else 0, query + 1)
        }
        for page in sorted(seen):
            inside = int(row[page]) * PAGE_BYTES + head * HEAD_BYTES
            yield from ((array + inside, count * HEAD_BYTES) for array in (KEYS, VALUES))


def pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


@pytest.mark.parametrize(("rank", "size"), [(0, 1), (1, 2), (0, 3), (2, 3), (3, 4), (4, 6)])
@pytest.mark.parametrize("window", [0, WINDOW])
@given(sequences=sequences_of_a_step, lines=st.integers(1, 9))
def test_keys_and_values_that_a_thread_will_read(
    rank: int, size: int, window: int, sequences: list[tuple[int, int]], lines: int
) -> None:
    spans, table = arrays(sequences)
    lib = library()
    lib.look(window, rank, size, len(sequences), pointer(spans), pointer(table))
    expected = [
        start + offset
        for start, length in runs(sequences, table, window, rank, size)
        for offset in range(0, length, lines * LINE)
    ]
    assert [lib.take(lines) for _ in expected] == expected
    assert [lib.take(lines) for _ in range(2)] == [NOTHING] * 2


def test_there_is_nothing_ahead_of_a_latent_cache_and_behind_the_last_attention() -> None:
    spans, table = arrays([(30, 1)])
    lib = library()
    for forget in (lambda: lib.look_at_latent(1, pointer(spans), pointer(table)), lib.away):
        lib.look(0, 0, 1, 1, pointer(spans), pointer(table))
        assert lib.take(1) >= KEYS
        forget()
        assert lib.take(1) == NOTHING


def test_a_product_that_nobody_told_of_an_attention_fetches_nothing() -> None:
    assert library().take_of_nobody() == NOTHING


@pytest.mark.parametrize("target", [name for name in TARGETS if "amx" not in name])
@pytest.mark.parametrize("bits", [4, 8, 16])
def test_products_of_many_rows_fetch_for_attention_and_those_of_few_do_not(
    target: str, bits: int
) -> None:
    spans, table = arrays([(100, 1)])
    lib, next_lines = library(target), {}
    for rows in (1, 64):
        lib.look(0, 0, 1, 1, pointer(spans), pointer(table))
        first = lib.take(1)
        lib.multiply(bits, rows)
        next_lines[rows] = lib.take(1) - first
    assert next_lines[1] == LINE != next_lines[64]
