"""Each rule of the CPU: what it makes one kernel, what it leaves alone, and why."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ingot.artifact.formats import Format, rounded_rows
from ingot.artifact.target import Target
from ingot.ops.scaled import Scaled
from ingot.targets.cpu.kind import KIND
from tests.targets.cpu.grouped import grouped, inner, kernels, read, refused, untouched
from tests.targets.sketch import STEP, Sketch, normal

TARGET = Target("cpu", "portable")


# Gates ------------------------------------------------------------------------------------------


def product(s: Sketch, outputs: int, form: Format | None = None, name: str = "w") -> str:
    """The result of a product; of integers if there is a format."""
    if form is None:
        return s.call("linear", s.rows("x", 32), s.weight(name, normal(outputs, 32)), out="made")
    values = torch.randint(-127, 128, (outputs, 32), dtype=torch.int8)
    scales = torch.ones(outputs, form.blocks_of(32))
    weight = s.weight(name, Scaled(values, None, scales, block=form.block), form)
    x8 = s.call("cast", s.rows("x", 32), out="x8", form=rounded_rows(form.block))
    return s.call("linear", x8, weight, out="made")


def gate(
    s: Sketch,
    made: str,
    size: int,
    *,
    first: int = 0,
    second: int | None = None,
    kind: str = "silu",
) -> str:
    """The gate of two parts of a product: its halves, if nothing else is said."""
    halves = (
        s.view("gate", made, first, size),
        s.view("up", made, size if second is None else second, size),
    )
    return s.call("gate", *halves, kind=kind, out="gated")


def test_a_product_and_its_gate_are_one_kernel() -> None:
    s = Sketch()
    gate(s, product(s, 128), 64)
    read(s, "gated")
    plan, _ = grouped(s)
    assert kernels(plan)[0] == ("gated_linear", "linear", "gate")
    assert inner(plan) == {"made"}


def two_products() -> Sketch:
    s = Sketch()
    made = product(s, 64)
    other = s.call("linear", "x", s.weight("v", normal(64, 32)), out="other")
    s.call("gate", made, other, kind="silu")
    return s


def swapped() -> Sketch:
    s = Sketch()
    gate(s, product(s, 128), 64, first=64, second=0)
    return s


def narrow() -> Sketch:
    s = Sketch()
    gate(s, product(s, 192), 96)
    return s


def ungated_columns() -> Sketch:
    s = Sketch()
    gate(s, product(s, 192), 64)
    return s


def gated_and_read() -> Sketch:
    s = Sketch()
    gate(s, product(s, 128), 64)
    read(s, "made")
    return s


@pytest.mark.parametrize(
    "make, reason",
    [
        (two_products, "the halves are products of their own"),
        (swapped, "gate and up are not the halves of the product"),
        (ungated_columns, "gate and up are not the halves of the product"),
        (narrow, "96 columns of each half are no multiple of 64"),
        (gated_and_read, "something else reads the product"),
    ],
)
def test_gates_stay_apart(make: Callable[[], Sketch], reason: str) -> None:
    assert refused(make(), "group_gates") == reason


def test_a_gate_of_what_no_product_makes_is_no_place_for_the_rule() -> None:
    s = Sketch()
    s.call("gate", s.rows("x", 64), s.rows("y", 64), kind="silu")
    assert untouched(s, "group_gates")


# Activations ------------------------------------------------------------------------------------


def activated(s: Sketch, made: str) -> str:
    return s.call("activation", made, kind="gelu", out="activated")


def test_a_product_and_its_activation_are_one_kernel() -> None:
    s = Sketch()
    read(s, activated(s, product(s, 64)))
    plan, _ = grouped(s)
    assert kernels(plan)[0] == ("activated_linear", "linear", "activation")
    assert inner(plan) == {"made"}


def test_a_product_that_others_read_is_activated_apart() -> None:
    s = Sketch()
    activated(s, product(s, 64))
    s.call("mul", "made", factor=2.0)
    assert refused(s, "group_activations") == "something else reads the product"


def test_an_activation_of_what_no_product_makes_is_no_place_for_the_rule() -> None:
    s = Sketch()
    activated(s, s.rows("x", 64))
    assert untouched(s, "group_activations")


# Layer norms ------------------------------------------------------------------------------------


def layer_norm(*shape: int) -> Sketch:
    s = Sketch()
    s.call("layer_norm", s.rows("x", *shape), s.weight("w", 1 + normal(64)), out="normed", eps=1e-5)
    return s


def cast_to(s: Sketch, form: Format | str) -> Sketch:
    s.call("cast", "normed", out="other", form=form)
    return s


KINDS_OF_CASTS = [("layer_norm_cast", "bfloat16"), ("layer_norm_quantize", rounded_rows(32))]


@pytest.mark.parametrize("kernel, form", KINDS_OF_CASTS)
def test_a_layer_norm_gives_its_results_in_another_type(kernel: str, form: Format | str) -> None:
    plan, _ = grouped(cast_to(layer_norm(64), form))
    assert kernels(plan)[0] == (kernel, "layer_norm", "cast")
    assert "normed" in inner(plan)


@pytest.mark.parametrize("kernel, form", KINDS_OF_CASTS)
def test_a_layer_norm_keeps_what_others_read_later(kernel: str, form: Format | str) -> None:
    s = cast_to(layer_norm(64), form)
    read(s, "normed")
    plan, _ = grouped(s)
    assert kernels(plan)[0] == (kernel, "layer_norm", "cast")
    assert "normed" not in inner(plan)


@pytest.mark.parametrize(
    "rule, form", [("group_casts", "bfloat16"), ("group_rounding", rounded_rows(32))]
)
def test_a_layer_norm_that_others_read_first_is_cast_apart(rule: str, form: Format | str) -> None:
    s = layer_norm(64)
    read(s, "normed")
    assert refused(cast_to(s, form), rule) == "something else reads the norm before it is cast"


def test_a_layer_norm_of_heads_is_cast_apart() -> None:
    s = cast_to(layer_norm(2, 64), "bfloat16")
    assert refused(s, "group_casts") == "the norm is one of heads"


# Residuals, bounds and sums ---------------------------------------------------------------------


@pytest.mark.parametrize("first", [True, False])
def test_a_product_adds_the_residual(first: bool) -> None:
    s = Sketch()
    operands = (product(s, 64), s.rows("residual", 64))
    s.call("add", *(operands if first else operands[::-1]), out="sum")
    read(s, "sum")
    plan, _ = grouped(s)
    assert kernels(plan)[0] == ("linear_add", "linear", "add")
    assert inner(plan) == {"made"}


def test_one_of_two_products_adds_the_other() -> None:
    s = Sketch()
    other = s.call("linear", s.rows("y", 32), s.weight("v", normal(64, 32)), out="other")
    s.call("add", product(s, 64), other, out="sum")
    read(s, "sum")
    plan, _ = grouped(s)
    assert sorted(kernels(plan)) == [("activation",), ("linear",), ("linear_add", "linear", "add")]


def added_twice() -> Sketch:
    s = Sketch()
    s.call("add", product(s, 64), s.rows("residual", 64), out="sum")
    read(s, "made")
    return s


def added_to_itself() -> Sketch:
    s = Sketch()
    made = product(s, 64)
    s.call("add", made, made, out="sum")
    return s


def narrow_residual() -> Sketch:
    s = Sketch()
    s.call("add", product(s, 64), s.rows("residual", 64, form="bfloat16"), out="sum")
    return s


@pytest.mark.parametrize("make", [added_twice, added_to_itself, narrow_residual])
def test_residuals_stay_apart(make: Callable[[], Sketch]) -> None:
    expected = "something else reads the product, or the residual is not float32"
    assert refused(make(), "group_residuals") == expected


def test_half_of_a_product_takes_no_residual() -> None:
    s = Sketch()
    half = s.view("half", product(s, 128), 0, 64)
    s.call("add", half, s.rows("residual", 64))
    assert untouched(s, "group_residuals")


def test_a_product_bounds_its_results() -> None:
    s = Sketch()
    s.call("soft_cap", product(s, 83), out="capped", cap=2.0)
    read(s, "capped")
    plan, _ = grouped(s)
    assert kernels(plan)[0] == ("linear_soft_cap", "linear", "soft_cap")
    assert inner(plan) == {"made"}


def test_a_product_that_others_read_is_bounded_apart() -> None:
    s = Sketch()
    s.call("soft_cap", product(s, 83), out="capped", cap=2.0)
    read(s, "made")
    assert refused(s, "group_soft_caps") == "something else reads the product"
    assert untouched(added_twice(), "group_soft_caps")


def summed() -> Sketch:
    s = Sketch()
    s.call("add", s.rows("x", 64), s.rows("y", 64), out="sum")
    return s


def norm(s: Sketch, x: str, out: str = "normed", form: Format | str = "float32") -> str:
    weight = s.weight(f"{out}_weight", 1 + normal(s.buffers[x].columns))
    return s.call("rms_norm", x, weight, out=out, eps=1e-5, form=form)  # type: ignore[arg-type]


def test_a_sum_and_its_norm_are_one_kernel_that_stores_both() -> None:
    s = summed()
    norm(s, "sum")
    read(s, "normed")
    plan, _ = grouped(s)
    assert kernels(plan)[0] == ("add_rms_norm", "add", "rms_norm")
    assert inner(plan) == set()


def test_a_sum_that_is_read_before_its_norm_stays_apart() -> None:
    s = summed()
    read(s, "sum")
    norm(s, "sum")
    expected = "something else reads the sum before the norm does"
    assert refused(s, "group_sums") == expected


def test_a_sum_that_a_product_makes_is_normed_apart() -> None:
    s = Sketch()
    s.call("add", product(s, 64), s.rows("residual", 64), out="sum")
    norm(s, "sum")
    assert untouched(s, "group_sums")


def test_of_half_a_sum_there_is_no_norm_with_it() -> None:
    s = summed()
    norm(s, s.view("half", "sum", 0, 32))
    assert untouched(s, "group_sums")


def test_a_norm_of_heads_is_none_of_the_sum() -> None:
    s = Sketch()
    s.call("add", s.rows("x", 4, 16), s.rows("y", 4, 16), out="sum")
    s.call("rms_norm", "sum", s.weight("w", 1 + normal(16)), out="normed", eps=1e-5)
    assert refused(s, "group_sums") == "the norm is one of heads"


# Rounding ---------------------------------------------------------------------------------------


def rounded(s: Sketch, name: str, block: int, columns: int = 0) -> Sketch:
    if columns:
        name = s.view("row", name, 0, columns)
    s.call("cast", name, out="rounded", form=rounded_rows(block))
    return s


def normed_once() -> Sketch:
    s = Sketch()
    norm(s, s.rows("x", 64))
    return s


def gated_once(block: int, size: int = 128, weights: bool = True) -> Sketch:
    s = Sketch()
    gate(s, product(s, 2 * size, Format("int8", 32, 32, "float16") if weights else None), size)
    return rounded(s, "gated", block)


def activated_once(block: int, size: int = 128) -> Sketch:
    s = Sketch()
    activated(s, product(s, size, Format("int8", 32, 32, "float16")))
    return rounded(s, "activated", block)


def attended_segments(block: int) -> Sketch:
    s = Sketch()
    rows = (s.rows(name, 4, 64) for name in "qkv")
    s.call("segment_attention", *rows, "spans", out="attended", scale=0.1)
    return rounded(s, "attended", block, 256)


def attended(block: int) -> Sketch:
    s = Sketch()
    q = s.rows("q", 4, 64)
    s.call("paged_attention", q, *s.caches(2, 64), *STEP, out="attended", scale=0.1)
    return rounded(s, "attended", block, 256)


@pytest.mark.parametrize(
    "s, kernel, lost",
    [
        (rounded(normed_once(), "normed", 32), ("rms_norm_quantize", "rms_norm", "cast"), "normed"),
        (attended(32), ("paged_attention_quantize", "paged_attention", "cast"), "attended"),
        (attended(64), ("paged_attention_quantize", "paged_attention", "cast"), "attended"),
        (
            attended_segments(64),
            ("segment_attention_quantize", "segment_attention", "cast"),
            "attended",
        ),
        (
            activated_once(32),
            ("activated_linear_quantize", "linear", "activation", "cast"),
            "activated",
        ),
        (gated_once(32), ("gated_linear_quantize", "linear", "gate", "cast"), "gated"),
        (gated_once(128), ("gated_linear_quantize", "linear", "gate", "cast"), "gated"),
    ],
)
def test_results_are_rounded_by_what_makes_them(
    s: Sketch, kernel: tuple[str, ...], lost: str
) -> None:
    plan, _ = grouped(s)
    assert kernels(plan)[-1] == kernel
    assert lost in inner(plan)


def norm_of_heads() -> Sketch:
    s = Sketch()
    weight = s.weight("w", 1 + normal(64))
    s.call("rms_norm", s.rows("x", 2, 64), weight, out="normed", eps=1e-5)
    return rounded(s, "normed", 32, 128)


def rounded_in_part() -> Sketch:
    s = Sketch()
    norm(s, s.rows("x", 128))
    s.call("cast", s.view("half", "normed", 64, 64), out="rounded", form=rounded_rows(32))
    return s


def rounded_and_read() -> Sketch:
    s = rounded(normed_once(), "normed", 32)
    read(s, "normed")
    return s


def rounded_twice() -> Sketch:
    s = rounded(normed_once(), "normed", 32)
    s.call("cast", "normed", out="again", form=rounded_rows(64))
    return s


@pytest.mark.parametrize(
    "s, reason, count",
    [
        (norm_of_heads(), "the norm is one of heads", 1),
        (attended(128), "blocks of 128 do not divide heads of 64", 1),
        (activated_once(96, 192), "blocks of 96 do not suit units of 64 of 192 columns", 1),
        (attended_segments(128), "blocks of 128 do not divide heads of 64", 1),
        (gated_once(32, weights=False), "its weights are not integers", 1),
        (gated_once(256, 256), "blocks of 256 do not suit units of 64 of 256 columns", 1),
        (gated_once(96, 192), "blocks of 96 do not suit units of 64 of 192 columns", 1),
        (gated_once(48, 192), "blocks of 48 do not suit units of 64 of 192 columns", 1),
        (rounded_in_part(), "a part of the results is rounded", 1),
        (rounded_and_read(), "something else reads what is rounded", 1),
        (rounded_twice(), "something else reads what is rounded", 2),
    ],
)
def test_results_are_rounded_apart(s: Sketch, reason: str, count: int) -> None:
    plan, ledger = grouped(s)
    entry = ledger["group_rounding"]
    assert (entry.formed, entry.reasons) == (0, ((reason, count),))
    assert ("cast",) in kernels(plan)


def test_other_casts_are_no_place_for_the_rule() -> None:
    s = normed_once()
    s.call("cast", "normed", form="bfloat16")
    s.call("cast", s.rows("y", 64), out="given", form=rounded_rows(32))
    assert untouched(s, "group_rounding")


def test_the_norm_of_a_sum_is_rounded_apart() -> None:
    s = summed()
    norm(s, "sum")
    assert untouched(rounded(s, "normed", 32), "group_rounding")
    assert kernels(grouped(s)[0])[0] == ("add_rms_norm", "add", "rms_norm")


# Rules left out ---------------------------------------------------------------------------------


def test_rules_can_be_left_out() -> None:
    plan, ledger = KIND.group(gated_once(32).plan(), ("group_gates",))
    assert [entry.name for entry in ledger] == [n for n in KIND.rules if n != "group_gates"]
    assert kernels(plan) == [("cast",), ("linear",), ("gate",), ("cast",)]
    assert KIND.group(gated_once(32).plan(), KIND.rules)[0].groups == ()
