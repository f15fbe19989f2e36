"""What is multiplied with integers is rounded to 16 bits, by what makes it where that can be."""

from __future__ import annotations

import torch

from ingot.artifact.formats import Format
from ingot.artifact.plan import Plan
from ingot.ops.scaled import Scaled
from ingot.targets.cuda.kind import KIND
from tests.targets.sketch import RECORDS, Sketch, normal


def integers(s: Sketch, name: str, columns: int = 64) -> str:
    values = torch.ones(64, columns, dtype=torch.int8)
    form = Format("int8", columns, columns, "float16")
    return s.weight(name, Scaled(values, None, torch.ones(64, 1)), form)


def normed(s: Sketch, name: str = "h") -> str:
    return s.call(
        "rms_norm", s.rows(f"{name}_x", 64), s.vector(f"{name}_w", 64), eps=1e-6, out=name
    )


def ops(plan: Plan) -> list[str]:
    return [i.op for i in plan.instructions]


def dtypes(plan: Plan, *names: str) -> list[str]:
    return [plan.buffer(name).dtype for name in names]


def test_the_maker_rounds_for_all_products() -> None:
    s = Sketch()
    h = normed(s)
    for name in "ab":
        s.call("linear", h, integers(s, f"w_{name}"), out=name)
    plan = KIND.rewrite(s.plan())
    assert ops(plan) == ["rms_norm", "linear", "linear"]
    assert dtypes(plan, "h_x", "h", "a") == ["float32", "bfloat16", "float32"]


def test_rows_that_are_chosen_and_views_are_as_narrow() -> None:
    s = Sketch()
    h = normed(s)
    s.view("half", h, 32, 32)
    chosen = s.call("select_rows", h, "logit_rows", out="chosen")
    s.call("linear", "half", integers(s, "w", 32), out="a")
    s.call("linear", chosen, integers(s, "head"), into=s.logits(64))
    plan = KIND.rewrite(s.plan())
    assert ops(plan) == ["rms_norm", "select_rows", "linear", "linear"]
    assert dtypes(plan, "h", "half", "chosen") == ["bfloat16"] * 3


def test_a_value_that_something_else_reads_keeps_its_digits() -> None:
    """Products share its cast, which comes before the first."""
    s = Sketch()
    s.prefix = "layer."
    h = normed(s)
    s.call("mul", h, factor=2.0, out="twice")
    for name in "ab":
        s.call("linear", h, integers(s, f"w_{name}"), out=name)
    plan = KIND.rewrite(s.plan())
    assert ops(plan) == ["rms_norm", "mul", "cast", "linear", "linear"]
    cast, *products = plan.instructions[2:]
    assert (cast.inputs, cast.origin) == ({"x": "layer.h"}, "cases.layer")
    out = plan.buffer(cast.outputs["out"])
    assert (out.dtype, out.shape, out.kind) == ("bfloat16", ("N", 64), "arena")
    assert {product.inputs["x"] for product in products} == {out.name}
    assert dtypes(plan, "layer.h") == ["float32"]


def test_what_cannot_round_gets_a_cast() -> None:
    s = Sketch()
    total = s.call("add", s.rows("x", 64), s.rows("y", 64), out="total")
    chosen = s.call("select_rows", total, "logit_rows", out="chosen")
    s.call("linear", chosen, integers(s, "w"), out="a")
    plan = KIND.rewrite(s.plan())
    assert ops(plan) == ["add", "select_rows", "cast", "linear"]
    assert plan.buffer(plan.instructions[2].outputs["out"]).shape == ("R", 64)


def test_a_plan_with_float16_stays_in_it() -> None:
    s = Sketch()
    s.rows("queries", 64, form="float16")
    h = normed(s)
    s.call("linear", h, integers(s, "w"), out="a")
    total = s.call("add", s.rows("x", 64), s.rows("y", 64), out="total")
    s.call("linear", total, integers(s, "v"), out="b")
    plan = KIND.rewrite(s.plan())
    assert ops(plan) == ["rms_norm", "linear", "add", "cast", "linear"]
    assert dtypes(plan, "h", plan.instructions[3].outputs["out"]) == ["float16"] * 2


def test_a_plan_without_products_of_integers_stays() -> None:
    """A table in integers is only looked up."""
    s = Sketch()
    s.call("linear", normed(s), s.weight("w", normal(64, 64)), out="a")
    s.call("embedding", "tokens", integers(s, "table"), out="row")
    assert KIND.rewrite(s.plan()) == s.plan()


def recurrent(s: Sketch) -> str:
    k, v = s.rows("k", 1, 4), s.rows("v", 3, 8)
    decay, state = s.rows("decay", 3), s.record(12, 8, "matrices")
    rows = (s.rows("q", 1, 4), k, v, decay, None, None, None, None)
    return s.call("recurrence", *rows, state, *RECORDS, rule="add", out="y")


def test_recurrences_take_up_cells_of_tokens() -> None:
    """Their records hold rows of a cell beside the matrices; other records stay as they are."""
    s = Sketch()
    recurrent(s)
    s.call("token_shift", s.rows("x", 8), s.record(1, 8, "tail"), *RECORDS)
    before, plan = s.plan(), KIND.rewrite(s.plan())
    assert (before.grid, plan.grid) == (0, 16)
    assert [state.record for state in plan.spec.states] == [(12 + 59, 8), (1, 8)]
    assert plan.slot_bytes - before.slot_bytes == 59 * 8 * 4
    assert KIND.rewrite(plan) == plan
