"""Activations are rounded to int8 before products with integers, once for those that share them,
and queries where keys are integers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ingot.artifact.formats import Format, rounded_rows
from ingot.artifact.plan import Plan
from ingot.ops.scaled import Scaled
from ingot.targets.cpu.rewrite import round_activations, round_queries
from tests.targets.sketch import STEP, Sketch, normal


def integers(s: Sketch, name: str, block: int, bits: int = 8, outputs: int = 64) -> str:
    values = torch.ones(outputs, 128, dtype=torch.int8)
    form = Format("int8" if bits == 8 else "int4", block, block, "float16")
    return s.weight(name, Scaled(values, None, torch.ones(outputs, 128 // block)), form)


def ops(plan: Plan) -> list[str]:
    return [i.op for i in plan.instructions]


def test_what_is_multiplied_with_integers_is_rounded_in_their_blocks() -> None:
    s = Sketch()
    s.prefix = "layer."
    s.call("linear", s.rows("x", 128), integers(s, "w", 32))
    plan = round_activations(s.plan())
    cast, product = plan.instructions
    assert (cast.op, cast.inputs, cast.origin) == ("cast", {"x": "layer.x"}, "cases.layer")
    out = plan.buffer(cast.outputs["out"])
    assert (out.format, out.shape, out.kind) == (rounded_rows(32), ("N", 128), "arena")
    assert product.inputs == {"x": out.name, "weight": "layer.w"}


def test_products_of_the_same_rows_in_the_same_blocks_share_the_cast() -> None:
    s = Sketch()
    x = s.rows("x", 128)
    for index, (block, bits) in enumerate(((32, 8), (32, 4), (64, 8), (32, 8))):
        s.call("linear", x, integers(s, f"w{index}", block, bits), out=f"y{index}")
    plan = round_activations(s.plan())
    assert ops(plan) == ["cast", "linear", "linear", "cast", "linear", "linear"]
    read = [i.inputs["x"] for i in plan.instructions if i.op == "linear"]
    assert read[0] == read[1] == read[3] != read[2]
    assert [plan.buffer(name).format.block for name in read] == [32, 32, 64, 32]


def test_what_a_fine_product_reads_has_sixteen_bits_for_it_alone() -> None:
    s = Sketch()
    x = s.rows("x", 128)
    for name in ("coarse", "fine"):
        s.call("linear", x, integers(s, name, 32), out=f"of_{name}")
    plan = round_activations(s.plan(), {"fine"})
    assert ops(plan) == ["cast", "linear", "cast", "linear"]
    read = [plan.buffer(i.inputs["x"]).format for i in plan.instructions if i.op == "linear"]
    assert read == [rounded_rows(32), rounded_rows(32, "int16")]


def test_other_rows_have_casts_of_their_own() -> None:
    s = Sketch()
    for name in "xy":
        s.call("linear", s.rows(name, 128), integers(s, f"w{name}", 32), out=f"out_{name}")
    assert ops(round_activations(s.plan())) == ["cast", "linear"] * 2


def test_heads_are_rounded_as_the_rows_that_a_product_reads() -> None:
    s = Sketch()
    row = s.view("row", s.rows("heads", 2, 64), 0, 128)
    s.call("linear", row, integers(s, "w", 128))
    (cast, _) = round_activations(s.plan()).instructions
    assert cast.inputs == {"x": "row"}
    s.call("linear", "heads", "w", out="of_heads")
    plan = round_activations(s.plan())
    assert plan.buffer("heads_int8_b128").shape == ("N", 128)


def test_rows_that_are_chosen_are_as_many_when_rounded() -> None:
    s = Sketch()
    chosen = s.call("select_rows", s.rows("x", 128), "logit_rows", out="chosen")
    s.call("linear", chosen, integers(s, "w", 32), into=s.logits(64))
    plan = round_activations(s.plan())
    assert ops(plan) == ["select_rows", "cast", "linear"]
    assert plan.buffer(plan.instructions[1].outputs["out"]).shape == ("R", 128)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_plan_without_products_of_integers_stays(dtype: torch.dtype) -> None:
    """A table in integers is only looked up."""
    s = Sketch()
    name = str(dtype).removeprefix("torch.")
    s.call("linear", s.rows("x", 32, form=name), s.weight("w", normal(64, 32, dtype=dtype)))  # type: ignore[arg-type]
    s.call("embedding", "tokens", integers(s, "table", 32), out="row")
    assert round_activations(s.plan()) == s.plan()


def attention(form: Format) -> Plan:
    s = Sketch()
    s.call("paged_attention", s.rows("q", 4, 16), *s.caches(2, 16, form), *STEP, scale=0.25)
    return s.plan()


def test_queries_are_rounded_where_keys_are() -> None:
    plan = attention(rounded_rows(16))
    (before,), (after,) = plan.instructions, round_queries(plan).instructions
    assert not before.attrs["rounds_queries"]
    assert after.attrs == before.attrs | {"rounds_queries": True}
    assert replace(after, attrs=before.attrs) == before


def test_other_queries_stay() -> None:
    """Rows that are keys and values become wider numbers when they are read."""
    s = Sketch()
    cache = s.latent_cache(32, rounded_rows(16))
    q = s.rows("q", 4, 32)
    s.call("paged_attention", q, cache, None, *STEP, scale=0.25, value_size=16, shape=(4, 16))
    for plan in (s.plan(), attention(Format("float32"))):
        assert round_queries(plan) == plan
