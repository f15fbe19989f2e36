"""Barriers stand where data crosses threads, and nowhere else."""

from __future__ import annotations

import pytest

from ingot.artifact.plan import Buffer, Instruction, Limits, MemoryPlan, Plan
from ingot.targets.cpu.barriers import SIZES, Barrier, Size, barriers
from ingot.targets.cpu.operands import Operands

LIMITS = Limits(
    max_model_len=64, max_num_seqs=2, max_num_batched_tokens=16, max_logit_rows=2, page_size=16
)
ALL: frozenset[Size] = frozenset(SIZES)
SMALL: frozenset[Size] = frozenset({"few", "some"})
SIZE = 16 * 32 * 4  # bytes of a temporary (N, 32)


def temporary(name: str, offset: int, rows: str = "N") -> Buffer:
    return Buffer(name=name, dtype="float32", shape=(rows, 32), kind="arena", offset=offset)


def instruction(op: str, inputs: dict[str, str], *outputs: str) -> Instruction:
    names = ("out", "sum")
    return Instruction(
        op=op, inputs=inputs, outputs=dict(zip(names, outputs, strict=False)), attrs={}, origin=""
    )


def flags(
    buffers: list[Buffer], *instructions: Instruction, size: Size = "some"
) -> tuple[bool, ...]:
    """Whether steps of some rows wait before each instruction, or those of another size."""
    return tuple(size in barrier.even for barrier in waits(buffers, *instructions))


def waits(buffers: list[Buffer], *instructions: Instruction) -> tuple[Barrier, ...]:
    buffers = [
        *buffers,
        Buffer(name="w", dtype="float32", shape=(32, 32), kind="weight"),
        Buffer(name="rows", dtype="int32", shape=("R",), kind="input"),
    ]
    memory = MemoryPlan(arena_bytes=8 * SIZE, slots=())
    plan = Plan(limits=LIMITS, buffers=tuple(buffers), instructions=instructions, memory=memory)
    return barriers(Operands(plan))


def test_rows_dealt_alike_need_no_barrier() -> None:
    a, b, c = (temporary(n, i * SIZE) for i, n in enumerate("abc"))
    first = instruction("activation", {"x": "a"}, "b")
    second = instruction("cast", {"x": "b"}, "c")
    assert flags([a, b, c], first, second) == (False, False)


def test_a_linear_waits_for_all_rows_of_its_input() -> None:
    a, b, c = (temporary(n, i * SIZE) for i, n in enumerate("abc"))
    first = instruction("activation", {"x": "a"}, "b")
    second = instruction("linear", {"x": "b", "weight": "w"}, "c")
    assert flags([a, b, c], first, second) == (False, True)


def test_readers_of_a_linear_wait_for_all_its_columns_once() -> None:
    a, b, c, d = (temporary(n, i * SIZE) for i, n in enumerate("abcd"))
    first = instruction("linear", {"x": "a", "weight": "w"}, "b")
    second = instruction("activation", {"x": "b"}, "c")
    third = instruction("cast", {"x": "b"}, "d")
    assert flags([a, b, c, d], first, second, third) == (False, True, False)


def test_linears_that_only_share_an_input_need_no_barrier() -> None:
    a, b, c = (temporary(n, i * SIZE) for i, n in enumerate("abc"))
    first = instruction("linear", {"x": "a", "weight": "w"}, "b")
    second = instruction("linear", {"x": "a", "weight": "w"}, "c")
    assert flags([a, b, c], first, second) == (False, False)


@pytest.mark.parametrize("offset, expected", [(0, True), (SIZE - 64, True), (SIZE, False)])
def test_memory_used_again_is_not_written_while_it_is_read(offset: int, expected: bool) -> None:
    """`c` may lie where `a` was; another thread may still be reading `a`."""
    a, b = temporary("a", 0), temporary("b", 4 * SIZE)
    c, d = temporary("c", offset), temporary("d", 5 * SIZE)
    first = instruction("linear", {"x": "a", "weight": "w"}, "b")
    second = instruction("activation", {"x": "d"}, "c")
    assert flags([a, b, c, d], first, second) == (False, expected)


def test_rows_of_another_buffer_in_the_same_bytes_are_dealt_otherwise() -> None:
    """Rows of another width start elsewhere, though both ops deal rows."""
    a, b = temporary("a", 0), temporary("b", SIZE)
    c = Buffer(name="c", dtype="float32", shape=("N", 16), kind="arena", offset=0)
    d = Buffer(name="d", dtype="float32", shape=("N", 16), kind="arena", offset=2 * SIZE)
    first = instruction("activation", {"x": "a"}, "b")
    second = instruction("activation", {"x": "d"}, "c")
    assert flags([a, b, c, d], first, second) == (False, True)


def test_selected_rows_may_be_any_threads() -> None:
    a, b = temporary("a", 0), temporary("b", SIZE)
    c = temporary("c", 2 * SIZE, rows="R")
    first = instruction("activation", {"x": "a"}, "b")
    second = instruction("select_rows", {"x": "b", "rows": "rows"}, "c")
    assert flags([a, b, c], first, second) == (False, True)


def test_views_are_their_base() -> None:
    a, b, c = (temporary(n, i * SIZE) for i, n in enumerate("abc"))
    view = Buffer(
        name="v", dtype="float32", shape=("N", 16), kind="view", base="b", offset=16, row_stride=32
    )
    first = instruction("linear", {"x": "a", "weight": "w"}, "b")
    second = instruction("activation", {"x": "v"}, "c")
    assert flags([a, b, c, view], first, second) == (False, True)


def test_attention_waits_for_the_keys_of_its_step() -> None:
    q, out, k = (temporary(n, i * SIZE) for i, n in enumerate(("q", "o", "k")))
    caches = [
        Buffer(name=n, dtype="float32", shape=(0, 2, 16, 16), kind="cache") for n in ("kc", "vc")
    ]
    write = instruction("kv_write", {"k": "k", "v": "k", "k_cache": "kc", "v_cache": "vc"})
    read = instruction("paged_attention", {"q": "q", "k_cache": "kc", "v_cache": "vc"}, "o")
    assert flags([q, out, k, *caches], write, read) == (False, True)
    assert flags([q, out, k, *caches], write, read, size="many") == (False, True)
    # Both write `o`, each thread the part of its heads if all have equally many.
    spared = Barrier(uneven=ALL)
    assert waits([q, out, k, *caches], read, read)[1] == spared


def test_few_rows_are_computed_by_every_thread_for_itself() -> None:
    """Readers of what all threads have computed still wait; what follows them row by row not."""
    a, b, c, d = (temporary(n, i * SIZE) for i, n in enumerate("abcd"))
    steps = (
        instruction("linear", {"x": "a", "weight": "w"}, "b"),
        instruction("activation", {"x": "b"}, "c"),
        instruction("linear", {"x": "c", "weight": "w"}, "d"),
    )
    assert flags([a, b, c, d], *steps) == (False, True, True)
    assert flags([a, b, c, d], *steps, size="few") == (False, True, False)


def test_memory_that_another_thread_may_still_read_is_not_written() -> None:
    """`d` lies where `b` was, which other threads may be reading for themselves."""
    a, b, c = (temporary(n, i * SIZE) for i, n in enumerate("abc"))
    d = temporary("d", SIZE)
    steps = (
        instruction("linear", {"x": "a", "weight": "w"}, "b"),
        instruction("activation", {"x": "b"}, "c"),
        instruction("linear", {"x": "c", "weight": "w"}, "d"),
    )
    assert flags([a, b, c, d], *steps, size="few") == (False, True, True)


def test_the_first_thread_has_no_memory_of_its_own_but_that_of_all() -> None:
    """`c` lies where other threads may be reading `a`."""
    a, b, c, d = (*(temporary(n, i * SIZE) for i, n in enumerate("ab")), temporary("c", 0),
                  temporary("d", 2 * SIZE))  # fmt: skip
    first = instruction("linear", {"x": "a", "weight": "w"}, "b")
    second = instruction("activation", {"x": "d"}, "c")
    assert flags([a, b, c, d], first, second, size="few") == (False, True)


def test_heads_that_are_dealt_evenly_need_no_barrier() -> None:
    """A thread attends to the keys that it wrote; no other op may divide the same bytes so."""
    caches = [
        Buffer(name=n, dtype="float32", shape=(0, 2, 16, 16), kind="cache") for n in ("kc", "vc")
    ]
    names = ("qkv", "t", "q", "o", "p", "r")
    buffers = [*(temporary(n, i * SIZE) for i, n in enumerate(names)), *caches]
    cached = {"k_cache": "kc", "v_cache": "vc"}
    turned = instruction(
        "rope_kv_write", {"q": "qkv", "k": "qkv", "v": "qkv", "table": "t", **cached}, "q"
    )
    read = instruction("paged_attention", {"q": "q", **cached}, "o")
    after = instruction("linear", {"x": "o", "weight": "w"}, "p")
    never, always = Barrier(), Barrier(ALL, ALL)
    spared = Barrier(frozenset({"many"}), ALL)
    assert waits(buffers, turned, read, after) == (never, spared, always)
    cast = instruction("cast", {"x": "q"}, "r")
    read = instruction("paged_attention", {"q": "r", **cached}, "o")
    assert waits(buffers, turned, cast, read)[1:] == (
        Barrier(SMALL, SMALL),
        Barrier(ALL, ALL - {"few"}),
    )


@pytest.mark.parametrize(
    "ops, waiting",
    [
        (("linear", "rms_norm", "linear", "rms_norm"), (True, False, True, True)),
        (("quantize", "linear", "rms_norm", "linear"), (True, False, False, True)),
        (("linear", "add", "rms_norm", "linear"), (True, False, False, True)),
    ],
)
def test_what_reads_attention_deals_rows(ops: tuple[str, ...], waiting: tuple[bool, ...]) -> None:
    """No thread waits between it and what goes on row by row; later products deal columns."""
    caches = [
        Buffer(name=n, dtype="float32", shape=(0, 2, 16, 16), kind="cache") for n in ("kc", "vc")
    ]
    buffers = [*(temporary(n, i * SIZE) for i, n in enumerate("qabcde")), *caches]
    attention = instruction("paged_attention", {"q": "q", "k_cache": "kc", "v_cache": "vc"}, "a")
    after = (
        instruction(op, {"x": x, "weight": "w"}, y)
        for op, x, y in zip(ops, "abcd", "bcde", strict=True)
    )
    assert flags(buffers, attention, *after) == (False, *waiting)


def test_products_before_norms_deal_rows_where_threads_meet_at_attention() -> None:
    """If they have unequally many KV heads; else it is by columns that they divide them."""
    buffers = [temporary(n, i * SIZE) for i, n in enumerate("abc")]
    first = instruction("linear", {"x": "a", "weight": "w"}, "b")
    second = instruction("rms_norm", {"x": "b", "weight": "w"}, "c")
    assert waits(buffers, first, second)[1] == Barrier(SMALL, frozenset({"few"}))


def test_many_rows_are_a_threads_own_through_all_products() -> None:
    a, b, c, d = (temporary(n, i * SIZE) for i, n in enumerate("abcd"))
    steps = (
        instruction("linear", {"x": "a", "weight": "w"}, "b"),
        instruction("activation", {"x": "b"}, "c"),
        instruction("linear", {"x": "c", "weight": "w"}, "d"),
    )
    assert flags([a, b, c, d], *steps, size="many") == (False, False, False)


def test_products_of_selected_rows_are_never_dealt_by_rows() -> None:
    a, b = temporary("a", 0, rows="R"), temporary("b", SIZE, rows="R")
    c = temporary("c", 2 * SIZE, rows="R")
    first = instruction("activation", {"x": "a"}, "b")
    second = instruction("linear", {"x": "b", "weight": "w"}, "c")
    assert flags([a, b, c], first, second, size="many") == (False, True)


def test_many_rows_do_not_overwrite_what_another_thread_reads() -> None:
    """`c` lies where `a` was, and its rows begin elsewhere."""
    a, b = temporary("a", 0), temporary("b", SIZE)
    c = Buffer(name="c", dtype="float32", shape=("N", 16), kind="arena", offset=0)
    first = instruction("linear", {"x": "a", "weight": "w"}, "b")
    second = instruction("linear", {"x": "b", "weight": "w"}, "c")
    assert flags([a, b, c], first, second, size="many") == (False, True)
