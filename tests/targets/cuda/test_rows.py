"""What is done row by row, against the references."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from ingot.artifact.formats import DType, Format, rounded_rows
from ingot.artifact.plan import Plan
from ingot.compiler.interpret import Value
from ingot.errors import CodegenError
from ingot.ops.activation import KINDS
from ingot.ops.dtypes import TORCH_DTYPES
from ingot.ops.pool import HOWS
from ingot.ops.registry import DEFAULT_TOLERANCE
from ingot.targets.cuda.calls_rows import ACTIVATIONS, CALLS
from tests.support import samples
from tests.targets.cuda.matrices import PAIRS, TWO_LEVELS, drawn, in_bits, int4, int8, with_zeros
from tests.targets.cuda.runs import expected, one_group, rows_of_one, run
from tests.targets.sketch import Sketch

TABLE_ROWS = 83
Build = Callable[[Sketch, int, DType], str]


def embedding(form: Format) -> Build:
    def build(s: Sketch, width: int, dtype: DType) -> str:
        own = Format(dtype) if form.dtype == "float32" else form
        table = s.weight("table", drawn(own, TABLE_ROWS, width), own)
        return s.call("embedding", "tokens", table, form=dtype)

    return build


def select_rows(s: Sketch, width: int, dtype: DType) -> str:
    return s.call("select_rows", s.rows("x", width, form=dtype), "logit_rows", form=dtype)


def pool(how: str) -> Build:
    def build(s: Sketch, width: int, dtype: DType) -> str:
        return s.call("pool", s.rows("x", width, form=dtype), "spans", form=dtype, how=how)

    return build


def rms_norm(s: Sketch, width: int, dtype: DType) -> str:
    x = s.rows("x", width, form=dtype)
    return s.call("rms_norm", x, s.vector("w", width), form=dtype, eps=1e-5, offset=1.0)


def rms_norm_of_heads(s: Sketch, width: int, dtype: DType) -> str:
    whole = s.rows("x", 4 * width, form=dtype)
    heads = s.view("heads", whole, width, 3, width)
    return s.call("rms_norm", heads, s.vector("w", width), form=dtype, eps=1e-5)


def add_rms_norm(s: Sketch, width: int, dtype: DType) -> str:
    total = s.call("add", s.rows("x", width), s.rows("y", width, form=dtype), out="sum")
    return s.call("rms_norm", total, s.vector("w", width), form=dtype, eps=1e-5)


def layer_norm(s: Sketch, width: int, dtype: DType) -> str:
    x = s.rows("x", width, form=dtype)
    return s.call("layer_norm", x, s.vector("w", width), s.vector("b", width), form=dtype, eps=1e-5)


def layer_norm_without_bias(s: Sketch, width: int, dtype: DType) -> str:
    x = s.rows("x", width, form=dtype)
    return s.call("layer_norm", x, s.vector("w", width), None, form=dtype, eps=1e-5)


def layer_norm_of_heads(s: Sketch, width: int, dtype: DType) -> str:
    """Every head has weights of its own."""
    whole = s.rows("x", 4 * width, form=dtype)
    heads = s.view("heads", whole, width, 3, width)
    return s.call("layer_norm", heads, s.vector("w", 3 * width), None, form=dtype, eps=1e-5)


def gate(s: Sketch, width: int, dtype: DType) -> str:
    whole = s.rows("x", 2 * width, form=dtype)
    halves = (s.view(f"half{at}", whole, at, width) for at in (0, width))
    return s.call("gate", *halves, kind="silu", form=dtype)


def activation(kind: str) -> Build:
    def build(s: Sketch, width: int, dtype: DType) -> str:
        return s.call("activation", s.rows("x", width, form=dtype), kind=kind, form=dtype)

    return build


def add(s: Sketch, width: int, dtype: DType) -> str:
    return s.call("add", s.rows("x", width, form=dtype), s.rows("y", width))


def mul(s: Sketch, width: int, dtype: DType) -> str:
    return s.call("mul", s.rows("x", width, form=dtype), factor=1.7, form=dtype)


def head_scale(s: Sketch, width: int, dtype: DType) -> str:
    """Heads that are parts of a wider row."""
    whole = s.rows("x", 4 * width, form=dtype)
    heads = s.view("heads", whole, width, 3, width)
    return s.call("head_scale", heads, s.rows("y", 3), form=dtype, shape=(3, width))


def clamp(s: Sketch, width: int, dtype: DType) -> str:
    return s.call("clamp", s.rows("x", width), low=-0.3, high=0.7, form=dtype)


def soft_cap(s: Sketch, width: int, dtype: DType) -> str:
    return s.call("soft_cap", s.rows("x", width, form=dtype), cap=0.7, form=dtype)


def concat(s: Sketch, width: int, dtype: DType) -> str:
    """Heads beside heads, one of them part of a wider row."""
    x = s.view("heads", s.rows("x", 4 * width, form=dtype), width, 3, width)
    y = s.view("more", s.rows("y", 3 * 20), 0, 3, 20)
    return s.call("concat", x, y, form=dtype, shape=(3, width + 20))


def reorder(s: Sketch, width: int, dtype: DType) -> str:
    order = torch.randperm(width, generator=torch.Generator().manual_seed(1)).float()
    return s.call("reorder", s.rows("x", width, form=dtype), s.weight("order", order), form=dtype)


def cast(s: Sketch, width: int, dtype: DType) -> str:
    return s.call("cast", s.rows("x", width), form=dtype)


BUILDS: Mapping[str, Build] = {
    "embedding": embedding(Format("float32")),
    "embedding int8": embedding(int8(32)),
    "embedding int4": embedding(int4(32, 64)),
    "embedding int4 plain": embedding(int4(32, 32)),
    "embedding int8 short": embedding(int8(128)),
    "embedding int5": embedding(with_zeros(in_bits(5, 32, 128))),
    "embedding int6": embedding(in_bits(6, 16, 64)),
    "embedding int4 short": embedding(int4(32, 128)),
    "embedding int4 zeros": embedding(with_zeros(int4(64, 64))),
    "embedding int8 zeros": embedding(with_zeros(int8(64))),
    "embedding int4 both": embedding(with_zeros(int4(32, 64))),
    "embedding int4 both short": embedding(with_zeros(int4(32, 128))),
    **{f"embedding {form}": embedding(form) for form in dict(PAIRS)},
    **{f"embedding {kind}": embedding(form) for kind, (form, _) in TWO_LEVELS.items()},
    "select_rows": select_rows,
    **{f"pool {how}": pool(how) for how in HOWS},
    "rms_norm": rms_norm,
    "rms_norm heads": rms_norm_of_heads,
    "add_rms_norm": add_rms_norm,
    "layer_norm": layer_norm,
    "layer_norm plain": layer_norm_without_bias,
    "layer_norm heads": layer_norm_of_heads,
    "gate": gate,
    **{f"activation {kind}": activation(kind) for kind in ACTIVATIONS},
    "add": add,
    "mul": mul,
    "head_scale": head_scale,
    "clamp": clamp,
    "soft_cap": soft_cap,
    "cast": cast,
    "concat": concat,
    "reorder": reorder,
}
WIDTHS = {
    "embedding int8": 96,
    "embedding int4": 192,
    "embedding int4 plain": 96,
    "embedding int5": 330,
    "embedding int6": 100,
    "embedding int4 short": 330,
    "embedding int4 both": 192,
    "embedding int4 both short": 330,
    **{f"embedding {kind}": width for kind, (_, width) in TWO_LEVELS.items()},
}


@dataclass(frozen=True)
class Ran:
    plan: Plan
    got: Mapping[str, Tensor]
    right: Mapping[str, Tensor]


def ran(
    name: str, width: int, dtype: DType, rows: int = 5, spread: float = 1.0, unpooled: int = 0
) -> Ran:
    s = Sketch()
    BUILDS[name](s, width, dtype)
    given: dict[str, Value] = {
        b.name: spread * samples.normal(torch.Generator().manual_seed(n), rows, b.columns)
        for n, b in enumerate(s.buffers.values())
        if b.name in ("x", "y")
    }
    given = {n: v.to(TORCH_DTYPES[s.buffers[n].dtype]) for n, v in given.items()}  # type: ignore[union-attr]
    plan = one_group(s.plan(), name.split()[0], ("sum",))
    inputs = rows_of_one(rows)
    inputs["tokens"] = torch.tensor([TABLE_ROWS - 1 - 3 * i for i in range(rows)]).int()
    inputs["spans"][0, 2] = unpooled
    inputs["logit_rows"] = torch.tensor([rows - 1, 0]).int()
    memory = run(plan, CALLS, inputs, s.weights, given)
    right = expected(plan, inputs, s.weights, given)
    got = {n: memory.read(plan.buffer(n)) for n in right if plan.buffer(n).kind == "arena"}
    return Ran(plan, got, right)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", BUILDS)
def test_kernel(name: str, dtype: DType) -> None:
    result = ran(name, WIDTHS.get(name, 37), dtype)
    for each, got in result.got.items():
        tolerance = DEFAULT_TOLERANCE[got.dtype]
        torch.testing.assert_close(
            got, result.right[each], rtol=tolerance.rtol, atol=tolerance.atol
        )


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm", "add_rms_norm", "add", "select_rows"])
def test_wide_rows(name: str) -> None:
    for each, got in (result := ran(name, 1100, "float32", rows=2)).got.items():
        torch.testing.assert_close(got, result.right[each], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("unpooled", [0, 3, 129])
@pytest.mark.parametrize("how", HOWS)
def test_many_rows_of_a_segment_are_pooled(how: str, unpooled: int) -> None:
    result = ran(f"pool {how}", 37, "float32", rows=130, unpooled=unpooled)
    for each, got in result.got.items():
        torch.testing.assert_close(got, result.right[each], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["soft_cap", "gate", *(f"activation {k}" for k in ACTIVATIONS)])
@pytest.mark.parametrize("spread", [1e-3, 10.0, 1e4])
def test_small_and_large_numbers(name: str, spread: float) -> None:
    for each, got in (result := ran(name, 300, "float32", spread=spread)).got.items():
        torch.testing.assert_close(got, result.right[each], rtol=2e-6, atol=1e-6)


def test_every_kernel_is_tested() -> None:
    assert {name.split()[0] for name in BUILDS} == set(CALLS)
    assert set(ACTIVATIONS) == set(KINDS)


@pytest.mark.parametrize("kind", ["activation", "gate"])
def test_an_activation_that_does_not_exist(kind: str) -> None:
    s = Sketch()
    x = s.rows("x", 8)
    s.call(kind, *[x] * (2 if kind == "gate" else 1), kind="swish")
    with pytest.raises(CodegenError, match="swish"):
        run(one_group(s.plan(), kind), CALLS, rows_of_one(1), {}, {"x": torch.ones(1, 8)})


def test_rows_are_not_rounded_to_integers() -> None:
    s = Sketch()
    s.call("cast", s.rows("x", 64), form=rounded_rows(32))
    with pytest.raises(CodegenError, match="rounds to int8-b32"):
        run(one_group(s.plan(), "cast"), CALLS, rows_of_one(1), {}, {"x": torch.ones(1, 64)})
