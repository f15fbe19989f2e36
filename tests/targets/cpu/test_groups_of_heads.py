"""The rules that make one kernel of what happens to heads, and why they leave some alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ingot.artifact.target import Target
from ingot.targets.cpu.kind import KIND
from tests.targets.cpu.grouped import grouped, inner, kernels, read, refused, untouched
from tests.targets.sketch import STEP, Sketch, normal

TARGET = Target("cpu", "portable")


class Heads:
    """Queries, keys and values from a product to attention; each step can be changed."""

    def __init__(
        self,
        size: int = 64,
        *,
        v_size: int = 0,
        product: bool = True,
        gap: int = 0,
        order: str = "qkv",
    ) -> None:
        self.s, self.size, v_size = Sketch(), size, v_size or size
        shapes = {"q": (4, size), "k": (2, size), "v": (2, v_size)}
        if product:
            outputs = sum(n * d for n, d in shapes.values()) + gap
            weight = self.s.weight("w", normal(outputs, 32))
            self.made, first = self.s.call("linear", self.s.rows("x", 32), weight, out="made"), 0
            for name in order:
                self.s.view(name, self.made, first, *shapes[name])
                first += shapes[name][0] * shapes[name][1]
        else:
            for name, shape in shapes.items():
                self.s.rows(name, *shape)
        self.v_size = v_size
        self.s.rows("table", 32)
        self.s.rows("other_table", 32)
        for seed, name in enumerate(("norm_q", "norm_k")):
            self.s.weight(name, 1 + 0.1 * normal(size, seed=seed))

    def norms(
        self, q: float = 1e-6, k: float = 1e-6, offset_q: float = 0, offset_k: float = 0
    ) -> Heads:
        self.s.call("rms_norm", "q", "norm_q", out="normed_q", eps=q, offset=offset_q)
        self.s.call("rms_norm", "k", "norm_k", out="normed_k", eps=k, offset=offset_k)
        return self

    def turns(
        self, q: str = "q", k: str = "k", table: str = "table", interleaved: bool = False
    ) -> Heads:
        self.s.call("rope", q, "table", out="turned_q")
        self.s.call("rope", k, table, out="turned_k", interleaved=interleaved)
        return self

    def cached(self, q: str = "turned_q", k: str = "turned_k", readers: int = 1) -> Sketch:
        s, rows = self.s, (0, 2, 16)
        s.caches(2, self.size)
        if self.v_size != self.size:
            s.add("v_cache", "float32", (*rows, self.v_size), "state")
        s.call("kv_write", k, "v", "slots", "k_cache", "v_cache")
        for index in range(readers):
            s.call("paged_attention", q, "k_cache", "v_cache", *STEP, out=f"o{index}", scale=0.1)
        return s


def test_heads_are_turned_and_written_by_one_kernel() -> None:
    s = Heads(product=False).turns().cached()
    plan, _ = grouped(s)
    ops = ("rope", "rope", "kv_write")
    assert kernels(plan) == [("rope_kv_write", *ops), ("paged_attention",)]
    assert inner(plan) == {"turned_k"}


def test_norms_of_heads_come_along() -> None:
    s = Heads(product=False).norms().turns("normed_q", "normed_k").cached()
    plan, _ = grouped(s)
    ops = ("rms_norm", "rms_norm", "rope", "rope", "kv_write")
    assert kernels(plan) == [("rope_kv_write", *ops), ("paged_attention",)]
    assert inner(plan) == {"normed_q", "normed_k", "turned_k"}


def test_a_norm_that_others_read_stays_outside() -> None:
    heads = Heads(product=False).norms()
    for name in ("normed_q", "normed_k"):
        read(heads.s, name, f"{name}_elsewhere")
    plan, _ = grouped(heads.turns("normed_q", "normed_k").cached())
    assert ("rope_kv_write", "rope", "rope", "kv_write") in kernels(plan)


def test_the_product_of_heads_comes_along() -> None:
    plan, _ = grouped(Heads().norms().turns("normed_q", "normed_k").cached())
    ops = ("linear", "rms_norm", "rms_norm", "rope", "rope", "kv_write")
    assert kernels(plan) == [("linear_rope_kv_write", *ops), ("paged_attention",)]
    assert inner(plan) == {"made", "normed_q", "normed_k", "turned_k"}


def q_unturned() -> Sketch:
    heads = Heads(product=False)
    heads.s.call("rope", "k", "table", out="turned_k")
    return heads.cached(q="q")


def keys_read_elsewhere() -> Sketch:
    heads = Heads(product=False).turns()
    read(heads.s, "turned_k")
    return heads.cached()


def one_norm() -> Sketch:
    heads = Heads(product=False)
    heads.s.call("rms_norm", "q", "norm_q", out="normed_q", eps=1e-6)
    return heads.turns(q="normed_q").cached()


def normed(**constants: float) -> Sketch:
    return Heads(product=False).norms(**constants).turns("normed_q", "normed_k").cached()


@pytest.mark.parametrize(
    "make, reason",
    [
        (lambda: Heads(product=False).turns().cached(readers=2), "2 instructions read the cache"),
        (lambda: Heads(product=False).turns().cached(readers=0), "0 instructions read the cache"),
        (q_unturned, "queries or keys are read by others, or queries are not turned"),
        (keys_read_elsewhere, "queries or keys are read by others, or queries are not turned"),
        (
            lambda: Heads(product=False).turns(table="other_table").cached(),
            "queries and keys differ in table",
        ),
        (
            lambda: Heads(product=False).turns(interleaved=True).cached(),
            "queries and keys differ in interleaved",
        ),
        (lambda: normed(q=1e-5, k=1e-6), "queries and keys differ in eps"),
        (lambda: normed(offset_q=0, offset_k=1), "queries and keys differ in offset"),
        (one_norm, "queries and keys differ in eps"),
    ],
)
def test_heads_stay_apart(make: Callable[[], Sketch], reason: str) -> None:
    assert refused(make(), "group_heads") == reason


def test_keys_that_are_not_turned_are_no_place_for_the_rule() -> None:
    assert untouched(Heads(product=False).cached(q="q", k="k"), "group_heads")


def test_values_of_another_size_are_written_apart() -> None:
    """No kernel writes them; the generator says so."""
    for product in (False, True):
        s = Heads(v_size=128, product=product).turns().cached()
        plan, ledger = KIND.group(s.plan())
        entry = next(e for e in ledger if e.name == "group_heads")
        assert entry.reasons == (("keys and values differ in shape", 1),)
        assert ("kv_write",) in kernels(plan)


def norms_of_whole_rows() -> Sketch:
    """Queries and keys have norms over all their heads together, as in OLMo 2."""
    heads = Heads()
    s = heads.s
    for name, first, count in (("q", 0, 4), ("k", 256, 2)):
        rows = s.view(f"rows_{name}", heads.made, first, count * 64)
        weight = s.weight(f"wide_{name}", 1 + normal(count * 64))
        normed = s.call("rms_norm", rows, weight, out=f"wide_normed_{name}", eps=1e-6)
        s.view(f"heads_{name}", normed, 0, count, 64)
    return heads.turns("heads_q", "heads_k").cached()


def test_a_norm_of_whole_rows_is_none_of_heads() -> None:
    made = kernels(grouped(norms_of_whole_rows())[0])
    assert made.count(("rms_norm",)) == 2
    assert ("rope_kv_write", "rope", "rope", "kv_write") in made


def test_a_part_of_what_is_turned_is_none_of_the_kernel() -> None:
    heads = Heads(product=False).turns()
    heads.s.rows("wide", 4, 64)
    heads.s.call("rope", "wide", "table", out="turned_wide")
    s = heads.cached(k=heads.s.view("part", "turned_wide", 0, 2, 64))
    assert untouched(s, "group_heads")


def second_reader_of_product() -> Sketch:
    heads = Heads()
    read(heads.s, heads.made)
    return heads.turns().cached()


def several_products() -> Sketch:
    heads = Heads(product=False)
    weight = heads.s.weight("w", normal(256, 32))
    made = heads.s.call("linear", heads.s.rows("x", 32), weight, out="made")
    heads.s.view("q", made, 0, 4, 64)
    return heads.turns().cached()


@pytest.mark.parametrize(
    "make, reason",
    [
        *(
            (
                lambda size=size: Heads(size).turns().cached(),
                f"head size {size} is no multiple of 64 columns",
            )
            for size in (32, 80, 96)
        ),
        (several_products, "queries, keys and values are made by several products"),
        (
            lambda: Heads(gap=64).turns().cached(),
            "the product makes more than queries, keys and values, or in another order",
        ),
        (
            lambda: Heads(order="kqv").turns().cached(),
            "the product makes more than queries, keys and values, or in another order",
        ),
        (
            lambda: Heads(order="qvk").turns().cached(),
            "the product makes more than queries, keys and values, or in another order",
        ),
        (norms_of_whole_rows, "queries, keys and values are made by several products"),
        (second_reader_of_product, "something else reads the product"),
    ],
)
def test_products_of_heads_stay_apart(make: Callable[[], Sketch], reason: str) -> None:
    s = make()
    assert refused(s, "group_head_products") == reason
    assert ("rope_kv_write", "rope", "rope", "kv_write") in kernels(grouped(s)[0])
