"""Barriers stand where data crosses threads, and nowhere else."""

from __future__ import annotations

import pytest

from ingot.artifact.formats import rounded_rows
from ingot.artifact.plan import Limits
from ingot.targets.cpu.barriers import SIZES, Barrier, Size, barriers
from ingot.targets.cpu.calls import CALLS
from ingot.targets.cpu.kernel_table import KERNELS
from ingot.targets.cpu.operands import Operands
from ingot.targets.cpu.sizes import sizes_with_own_rows
from ingot.targets.cpu.work import work_of
from ingot.targets.grouping import Flow, Found, group
from tests.targets.cpu.units import apart
from tests.targets.sketch import STEP, Sketch, normal

LIMITS = Limits(
    max_model_len=64, max_num_seqs=2, max_num_batched_tokens=16, max_logit_rows=2, page_size=16
)
ALL: frozenset[Size] = frozenset(SIZES)
SMALL: frozenset[Size] = frozenset({"few", "some"})
SIZE = 16 * 32 * 4  # bytes of a temporary (N, 32)


class Chain(Sketch):
    """Kernels of one primitive over rows of 32; `a` is given."""

    def __init__(self) -> None:
        super().__init__(LIMITS)
        self.rows("a", 32)
        self.weight("w", normal(32, 32))
        self.weight("v", normal(32))

    def linear(self, x: str, out: str) -> None:
        self.call("linear", x, "w", out=out)

    def silu(self, x: str, out: str) -> None:
        self.call("activation", x, out=out, kind="silu")

    def norm(self, x: str, out: str) -> None:
        self.call("rms_norm", x, "v", out=out, eps=1e-5)

    def attend(self, q: str, out: str) -> None:
        self.call("paged_attention", q, "k_cache", "v_cache", *STEP, out=out, scale=1.0)

    def add_residual(self, x: str, out: str) -> None:
        self.call("add", x, "a", out=out)

    def do(self, *steps: str) -> Chain:
        """Each step is the method and the names of what it reads and writes: "linear a b"."""
        for method, *names in map(str.split, steps):
            getattr(self, method)(*names)
        return self


def waits(
    s: Sketch, offsets: dict[str, int] | None = None, heads: bool = False
) -> tuple[Barrier, ...]:
    """What comes before each kernel, temporaries being in places of their own or in the given."""
    plan = group(s.plan(), [first_three] if heads else [])[0]
    return barriers(Operands(apart(plan, offsets)))


def first_three(flow: Flow, index: int) -> Found | None:
    """Both rotations and the writing of keys and values."""
    return Found("rope_kv_write", (0, 1, 2)) if index == 2 else None


def flags(
    s: Sketch, offsets: dict[str, int] | None = None, size: Size = "some"
) -> tuple[bool, ...]:
    """Whether steps of some rows wait before each kernel, or those of another size."""
    return tuple(size in barrier.even for barrier in waits(s, offsets))


def test_rows_dealt_alike_need_no_barrier() -> None:
    assert flags(Chain().do("silu a b", "norm b c")) == (False, False)


def test_a_linear_waits_for_all_rows_of_its_input() -> None:
    assert flags(Chain().do("silu a b", "linear b c")) == (False, True)


def test_readers_of_a_linear_wait_for_all_its_columns_once() -> None:
    assert flags(Chain().do("linear a b", "silu b c", "norm b d")) == (False, True, False)


def test_kernels_in_between_do_not_make_up_for_a_wait() -> None:
    assert flags(Chain().do("linear a b", "silu a c", "silu b d")) == (False, False, True)


def test_linears_that_only_share_an_input_need_no_barrier() -> None:
    assert flags(Chain().do("linear a b", "linear a c")) == (False, False)


@pytest.mark.parametrize("offset, expected", [(0, True), (SIZE - 64, True), (SIZE, False)])
def test_memory_used_again_is_not_written_while_it_is_read(offset: int, expected: bool) -> None:
    """`c` may lie where `a` was; another thread may still be reading `a`."""
    s = Chain()
    s.rows("d", 32)
    s.do("linear a b", "silu d c")
    assert flags(s, {"b": 4 * SIZE, "c": offset, "d": 5 * SIZE}) == (False, expected)


def test_rows_of_another_buffer_in_the_same_bytes_are_dealt_otherwise() -> None:
    """Rows of another width start elsewhere, though both kernels deal rows."""
    s = Chain()
    s.rows("d", 16)
    s.do("silu a b", "silu d c")
    assert flags(s, {"c": 0}) == (False, True)


def test_selected_rows_may_be_any_threads() -> None:
    s = Chain().do("silu a b")
    s.call("select_rows", "b", "logit_rows", out="c")
    assert flags(s) == (False, True)


def test_views_are_their_base() -> None:
    s = Chain().do("linear a b")
    s.silu(s.view("half", "b", 16, 16), "c")
    assert flags(s) == (False, True)


def test_scales_are_part_of_what_they_scale() -> None:
    """`c` lies where the scales of `b` are."""
    s = Chain()
    s.rows("d", 32)
    s.call("cast", "a", out="b", form=rounded_rows(32))
    s.linear("d", "c")
    scales = SIZE + 16 * 32
    assert flags(s, {"a": 0, "b": SIZE, "c": scales, "d": 5 * SIZE}) == (False, True)
    assert flags(s, {"a": 0, "b": SIZE, "c": scales + 64, "d": 5 * SIZE}) == (False, False)


def heads() -> Chain:
    """Queries, keys and values of 2 heads of 16, and caches for them."""
    s = Chain()
    for name in "qkv":
        s.rows(name, 2, 16)
    s.caches(2, 16)
    return s


def test_attention_waits_for_the_keys_of_its_step() -> None:
    s = heads()
    s.call("kv_write", "k", "v", "slots", "k_cache", "v_cache")
    s.attend("q", "o")
    assert flags(s) == (False, True)
    assert flags(s, size="many") == (False, True)
    # Both write `o`, each thread the part of its heads if all have equally many.
    s = heads().do("attend q o", "attend q p")
    start = 4 * SIZE
    assert waits(s, {"o": start, "p": start})[1] == Barrier(ALL, ALL)
    s.instructions[1] = s.instructions[0]
    assert waits(s)[1] == Barrier(uneven=ALL)


def test_attention_over_segments_waits_for_all_rows_of_its_keys() -> None:
    """Whoever computed them. Threads have no heads of their own, and share what they sum up."""
    s = heads()
    keys = s.call("activation", "k", kind="silu", out="keys")
    for out in ("o", "p"):
        s.call("segment_attention", "q", keys, "v", "spans", scale=0.3, out=out)
    _, first, second = waits(s)
    some_or_many = frozenset({"some", "many"})
    assert first == Barrier(some_or_many, some_or_many)
    assert second == Barrier(ALL, ALL)


def test_few_rows_are_computed_by_every_thread_for_itself() -> None:
    """Readers of what all threads have computed still wait; what follows them row by row not."""
    s = Chain().do("linear a b", "silu b c", "linear c d")
    assert flags(s) == (False, True, True)
    assert flags(s, size="few") == (False, True, False)


def test_memory_that_another_thread_may_still_read_is_not_written() -> None:
    """`d` lies where `b` was, which other threads may be reading for themselves."""
    s = Chain().do("linear a b", "silu b c", "linear c d")
    assert flags(s, {"d": SIZE}, size="few") == (False, True, True)


def test_the_first_thread_has_no_memory_of_its_own_but_that_of_all() -> None:
    """`c` lies where other threads may be reading `a`."""
    s = Chain()
    s.rows("d", 32)
    s.do("linear a b", "silu d c")
    assert flags(s, {"c": 0}, size="few") == (False, True)


def turned() -> Chain:
    s = heads()
    s.rows("t", 16)
    for name in "qk":
        s.call("rope", name, "t", out=f"{name}_turned")
    s.call("kv_write", "k_turned", "v", "slots", "k_cache", "v_cache")
    return s


def test_heads_that_are_dealt_evenly_need_no_barrier() -> None:
    """A thread attends to the keys that it wrote; no other kernel may divide the same bytes so."""
    s = turned()
    s.attend("q_turned", "o")
    s.linear(s.view("row", "o", 0, 32), "p")
    always = Barrier(ALL, ALL)
    spared = Barrier(frozenset({"many"}), ALL)
    assert waits(s, heads=True) == (Barrier(), spared, always)


def test_heads_that_something_reads_by_rows_do() -> None:
    s = turned()
    s.call("cast", "q_turned", out="r")
    s.attend("r", "o")
    assert waits(s, heads=True)[1:] == (Barrier(SMALL, SMALL), Barrier(ALL, ALL - {"few"}))


@pytest.mark.parametrize(
    "after, waiting",
    [
        (("linear o b", "norm b c", "linear c d", "norm d e"), (True, False, True, True)),
        (("silu o b", "linear b c", "norm c d", "linear d e"), (True, False, False, True)),
        (("linear o b", "add_residual b c", "norm c d", "linear d e"), (True, False, False, True)),
    ],
)
def test_what_reads_attention_deals_rows(after: tuple[str, ...], waiting: tuple[bool, ...]) -> None:
    """No thread waits between it and what goes on row by row; later products deal columns."""
    s = heads().do("attend q attended")
    s.view("o", "attended", 0, 32)
    assert flags(s.do(*after)) == (False, *waiting)


def test_products_before_norms_deal_rows_where_threads_meet_at_attention() -> None:
    """If they have unequally many KV heads; else it is by columns that they divide them."""
    assert waits(Chain().do("linear a b", "norm b c"))[1] == Barrier(SMALL, frozenset({"few"}))


def test_many_rows_are_a_threads_own_through_all_products() -> None:
    s = Chain().do("linear a b", "silu b c", "linear c d")
    assert flags(s, size="many") == (False, False, False)


def test_products_of_selected_rows_are_never_dealt_by_rows() -> None:
    s = Chain()
    s.call("select_rows", "a", "logit_rows", out="chosen")
    s.do("silu chosen b", "linear b c")
    assert flags(s, size="many") == (False, False, True)


def test_many_rows_do_not_overwrite_what_another_thread_reads() -> None:
    """`c` lies where `a` was, and its rows begin elsewhere."""
    s = Chain().do("linear a b")
    s.call("linear", "b", s.weight("narrow", normal(16, 32)), out="c")
    assert flags(s, {"c": 0}, size="many") == (False, True)


def test_every_kernel_that_is_a_norm_is_known_as_one() -> None:
    norms = {name for name, kernel in KERNELS.items() if kernel.is_norm}
    assert norms == {kernel for kernel in CALLS if "norm" in kernel}
    assert KERNELS.keys() <= CALLS.keys()


@pytest.mark.parametrize("op", ["rms_norm", "layer_norm"])
def test_products_deal_rows_before_any_norm_where_heads_are_uneven(op: str) -> None:
    s = Chain().do("linear a b")
    s.call(op, "b", "v", *(("v",) if op == "layer_norm" else ()), out="c", eps=1e-5)
    even, uneven = (sizes_with_own_rows(work_of(s.plan()), even=even)[0] for even in (True, False))
    assert (even, uneven) == ({"many"}, {"some", "many"})
