"""Heads on their way to attention: norms, rotations, and writes into the cache."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from ingot.artifact.formats import DType, Format, rounded_rows
from ingot.artifact.plan import Plan
from ingot.compiler.interpret import States, interpret
from ingot.errors import CodegenError
from ingot.ops import OPS
from ingot.ops.dtypes import TORCH_DTYPES
from ingot.ops.scaled import Scaled, round_to_int8
from ingot.targets.cuda.calls_heads import CALLS
from ingot.targets.cuda.operands import Operands
from ingot.targets.cuda.tiles import FEW_ROWS
from ingot.targets.work import Work
from tests.targets.cuda.runs import Memory, one_group, run
from tests.targets.sketch import Sketch

BF16: DType = "bfloat16"
PAGE = 16
PAGES = 6
Rows = dict[str, Tensor]


@dataclass(frozen=True)
class Heads:
    """Queries, keys and values that are turned and written; made by a product of `inputs`."""

    heads: int = 4
    kv_heads: int = 2
    size: int = 16
    rotated: int = 16
    interleaved: bool = False
    offset: float | None = None  # of the norm; None for no norm
    inputs: int = 0
    with_bias: bool = False
    kept: DType = BF16
    dtype: DType = BF16
    page: int = PAGE

    @property
    def kernel(self) -> str:
        return "linear_rope_kv_write" if self.inputs else "rope_kv_write"

    def sketch(self) -> Sketch:
        s = Sketch()
        q, k, v = self._made(s) if self.inputs else (
            s.rows(n, count, self.size) for n, count in zip("qkv", self.counts, strict=True)
        )  # fmt: skip
        if self.offset is not None:
            q, k = (self._normed(s, name, x) for name, x in (("q", q), ("k", k)))
        table = s.rows("table", self.rotated)
        turn = {"interleaved": self.interleaved}
        s.call("rope", q, table, out="turned", form=self.dtype, **turn)
        k = s.call("rope", k, table, out="turned_k", **turn)
        form = rounded_rows(self.size) if self.kept == "int8" else Format(self.kept)
        s.call("kv_write", k, v, "slots", *s.caches(self.kv_heads, self.size, form, self.page))
        return s

    @property
    def counts(self) -> tuple[int, int, int]:
        return self.heads, self.kv_heads, self.kv_heads

    def _made(self, s: Sketch) -> list[str]:
        outputs, first, views = sum(self.counts) * self.size, 0, []
        bias = s.vector("bias", outputs) if self.with_bias else None
        weight = torch.randn(outputs, self.inputs, generator=s.drawn("weight")) / self.inputs**0.5
        weight = weight.to(TORCH_DTYPES[self.dtype])
        x = s.rows("x", self.inputs, form=self.dtype)
        made = s.call("linear", x, s.weight("weight", weight), bias, out="made")
        for name, count in zip("qkv", self.counts, strict=True):
            views.append(s.view(name, made, first, count, self.size))
            first += count * self.size
        return views

    def _normed(self, s: Sketch, name: str, x: str) -> str:
        weight = s.vector(f"{name}_norm", self.size)
        return s.call(
            "rms_norm", x, weight, out=f"normed_{name}", eps=1e-2, offset=self.offset or 0.0
        )


CASES = {
    "rows": Heads(offset=0.0),
    "rows-partial-interleaved": Heads(3, 3, 20, 12, interleaved=True, page=48),
    "rows-int8": Heads(2, 1, 80, 32, kept="int8"),
    "rows-float32": Heads(2, 2, rotated=8, kept="float32", dtype="float32"),
    "rows-float16": Heads(kept="float16", dtype="float16"),
    "rows-float16-int8": Heads(2, 1, 80, 32, kept="int8", dtype="float16"),
    "product": Heads(offset=1.0, inputs=64),
    "product-split": Heads(2, 1, 24, 24, offset=0.0, inputs=600, with_bias=True, kept="int8"),
    "product-partial": Heads(6, 1, 80, 20, interleaved=True, inputs=48, with_bias=True),
    "product-float32": Heads(inputs=40, kept="float32", dtype="float32"),
    "product-float16": Heads(offset=1.0, inputs=64, kept="float16", dtype="float16"),
}


def step(rows: int, padding: int = 0) -> dict[str, Tensor]:
    """Tokens in slots that are far apart; those of padding have none."""
    rng = torch.Generator().manual_seed(rows)
    slots = torch.randperm(PAGES * PAGE, generator=rng)[:rows].tolist() + [-1] * padding
    values = {
        "tokens": [0] * len(slots),
        "positions": list(range(len(slots))),
        "slots": slots,
        "spans": [[0, rows, 0]],
        "page_table": [[0]],
        "logit_rows": [0],
    }
    return {name: torch.tensor(value, dtype=torch.int32) for name, value in values.items()}


def drawn(plan: Plan, rows: int, seed: int = 0) -> tuple[Rows, States]:
    """What no instruction makes, and the states."""
    rng = torch.Generator().manual_seed(seed)
    made = {name for i in plan.instructions for name in i.outputs.values()}
    shape = {b.name: tuple(map(int, b.shape[1:])) for b in plan.buffers if b.kind != "weight"}
    given = {
        b.name: torch.randn(rows, *shape[b.name], generator=rng).to(TORCH_DTYPES[b.dtype])
        for b in plan.of_kind("arena")
        if b.name not in made
    }
    states: States = {}
    for b in plan.of_kind("state"):
        x = torch.randn(PAGES, *shape[b.name], generator=rng)
        scaled = b.format.is_scaled
        states[b.name] = round_to_int8(x, b.format.block) if scaled else x.to(TORCH_DTYPES[b.dtype])
    return given, states


def check(s: Sketch, kernel: str, rows: int, padding: int = 0) -> Memory:
    """Runs the sketch as one kernel; its results and states are the reference's."""
    plan = one_group(s.plan(), kernel, stores=("turned",))
    inputs = step(rows, padding)
    given, states = drawn(plan, rows + padding)
    memory = run(plan, CALLS, inputs, s.weights, {**given, **states})
    interpreted = interpret(plan, lambda b: s.weights[b.name], {**inputs, **given}, states)
    made = {name: value for each in interpreted for name, value in each.items()}
    for name in {"turned", "out"} & made.keys():
        value = made[name]
        assert isinstance(value, Tensor)
        close(memory.read(plan.buffer(name)), value)
    for name, state in states.items():
        buffer = plan.buffer(name)
        if isinstance(state, Scaled):
            close(memory.read(buffer), state.values.view(-1, *state.values.shape[1:]))
            scales = memory.read(buffer, 1, torch.float32)
            close(scales, state.scales.view(-1))
        else:
            close(memory.read(buffer), state)
    return memory


def close(got: Tensor, want: Tensor) -> None:
    bounds = OPS["rope"].tolerance.get(want.dtype)
    rtol, atol = (bounds.rtol, bounds.atol) if bounds else (1e-3, 1e-3)
    torch.testing.assert_close(got, want.view(got.shape), rtol=rtol, atol=atol, equal_nan=True)


@pytest.mark.cases(core=4)
@pytest.mark.parametrize("name", CASES)
def test_queries_keys_and_values(name: str) -> None:
    heads = CASES[name]
    check(heads.sketch(), heads.kernel, rows=3, padding=2)


def test_a_step_of_many_rows_has_one_part() -> None:
    heads = Heads(1, 1, offset=0.0, inputs=520)
    rows = FEW_ROWS + 1
    plan = one_group(heads.sketch().plan(), heads.kernel, stores=("turned",))
    _, call = CALLS[heads.kernel](Operands(plan), Work(plan, plan.kernels[0]))
    assert [choice.constants["PARTS"] for choice in call.choices] == [2, 1]
    check(heads.sketch(), heads.kernel, rows)


@pytest.mark.cases(core=1)
@pytest.mark.deterministic
@pytest.mark.parametrize(
    "name, rows", (("product-split", 5), ("product-split", FEW_ROWS + 1), ("rows-int8", 5))
)
def test_a_row_is_the_same_bits_beside_others(name: str, rows: int) -> None:
    heads = CASES[name]
    s = heads.sketch()
    plan = one_group(s.plan(), heads.kernel, stores=("turned",))
    given, states = drawn(plan, rows)
    together = run(plan, CALLS, step(rows), s.weights, {**given, **states})
    inputs = step(rows)
    alone = run(
        plan, CALLS, {name: value[3:4] for name, value in inputs.items() if name != "spans"}
        | {"spans": torch.tensor([[0, 1, 3]], dtype=torch.int32), **_of_one(inputs)},
        s.weights, {**{name: x[3:4] for name, x in given.items()}, **states},
    )  # fmt: skip
    turned = plan.buffer("turned")
    assert torch.equal(together.read(turned)[3:4], alone.read(turned))
    slot = int(inputs["slots"][3])
    for cache in plan.of_kind("state"):
        first, second = (memory.read(cache) for memory in (together, alone))
        place = slot // heads.page, slice(None), slot % heads.page
        assert torch.equal(first[place], second[place])


def _of_one(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: inputs[name] for name in ("page_table", "logit_rows")}


def test_rope_alone() -> None:
    for heads, size, rotated, interleaved in ((3, 20, 12, True), (2, 80, 80, False)):
        s = Sketch()
        x, table = s.rows("x", heads, size, form=BF16), s.rows("table", rotated)
        s.call("rope", x, table, interleaved=interleaved, form=BF16)
        check(s, "rope", rows=3)


def test_kv_write_alone() -> None:
    for form, dtype in (
        (Format(BF16), BF16),
        (rounded_rows(20), BF16),
        (Format("float32"), "float32"),
        (Format("float16"), "float16"),
    ):
        s = Sketch()
        whole = s.rows("whole", 3 * 2 * 20, form=dtype)  # type: ignore[arg-type]
        k, v = (s.view(name, whole, first, 2, 20) for name, first in (("k", 40), ("v", 80)))
        s.call("kv_write", k, v, "slots", *s.caches(2, 20, form))
        check(s, "kv_write", rows=4, padding=1)


def test_heads_in_integers_follow_the_rule() -> None:
    """Zeros, tiny numbers and ties of the rounding are those of the reference; a NaN shows."""
    s = Sketch()
    k, v = (s.rows(name, 1, 32) for name in "kv")
    s.call("kv_write", k, v, "slots", *s.caches(1, 32, rounded_rows(32)))
    plan = s.plan()
    x = torch.zeros(4, 1, 32)
    x[1, 0, 0] = 2.0**-101
    x[2, 0] = torch.arange(32) / 2.0
    x[2, 0, 31] = 127.0
    x[3, 0, 5] = torch.nan
    _, states = drawn(plan, 4)
    inputs = step(4)
    memory = run(plan, CALLS, inputs, {}, {"k": x, "v": x, **states})
    want = round_to_int8(x, 32)
    slots = inputs["slots"].long()
    for name in ("k_cache", "v_cache"):
        values = memory.read(plan.buffer(name)).view(-1, 32)[slots]
        scales = memory.read(plan.buffer(name), 1, torch.float32)[slots]
        assert torch.equal(values[:3], want.values[:3, 0])
        assert torch.equal(scales[:3], want.scales[:3, 0, 0])
        assert torch.isnan(scales[3])


def test_what_no_kernel_takes_is_refused() -> None:
    def refused(heads: Heads, **formats: str) -> str:
        s = heads.sketch()
        for name, dtype in formats.items():
            s.buffers[name] = replace(s.buffers[name], format=Format(dtype))  # type: ignore[arg-type]
        plan = one_group(s.plan(), heads.kernel, stores=("turned",))
        with pytest.raises(CodegenError) as error:
            CALLS[heads.kernel](Operands(plan), Work(plan, plan.kernels[0]))
        return str(error.value)

    assert "heads of 320" in refused(Heads(size=320, rotated=64))
    assert "norm is bfloat16" in refused(Heads(offset=0.0), k_norm="bfloat16")
    product = Heads(inputs=64, with_bias=True)
    assert "bias is bfloat16" in refused(product, bias="bfloat16")
    assert "values in float32" in refused(Heads(), v_cache="float32")
    assert "cache in int32" in refused(Heads(), k_cache="int32", v_cache="int32")
