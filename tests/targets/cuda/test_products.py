"""Products against their references, and rows that do not depend on their company."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from ingot.artifact.formats import DType, Format
from ingot.artifact.plan import Plan
from ingot.compiler.interpret import Value
from ingot.errors import CodegenError
from ingot.ops.dtypes import TORCH_DTYPES
from ingot.ops.registry import KernelTolerance
from ingot.targets.cuda import interpreter
from ingot.targets.cuda.calls_products import CALLS, product_parts
from ingot.targets.cuda.operands import Operands
from ingot.targets.cuda.tiles import FEW_ROWS, splits_of
from ingot.targets.work import Work
from tests.support import samples
from tests.support.core import core
from tests.targets.cuda.matrices import PAIRS, TWO_LEVELS, drawn, in_bits, int4, int8, with_zeros
from tests.targets.cuda.runs import (
    FENCE,
    Memory,
    expected,
    launch,
    one_group,
    rows_of_one,
    run,
    sizes_of,
)
from tests.targets.sketch import Sketch

F32, BF16, F16 = Format("float32"), Format("bfloat16"), Format("float16")
ROWS = (1, 3, 17, 65)


@dataclass(frozen=True)
class Case:
    """A kernel with a product [outputs, columns]; x and what is made from it are of `dtype`."""

    kernel: str
    form: Format
    columns: int
    outputs: int
    dtype: DType = "bfloat16"
    with_bias: bool = False
    of_view: bool = False

    def __str__(self) -> str:
        more = "-bias" * self.with_bias + "-view" * self.of_view
        return f"{self.kernel}-{self.form}-{self.outputs}x{self.columns}-{self.dtype}{more}"

    @property
    def plan(self) -> Plan:
        return self.sketch[0]

    @property
    def weights(self) -> dict[str, Value]:
        return self.sketch[1]

    @property
    def sketch(self) -> tuple[Plan, dict[str, Value]]:
        return _sketch(self)

    def given(self, rows: int) -> dict[str, Value]:
        """x and the residual; the first rows are the same for any number of rows."""
        plan, found = self.plan, {}
        for name in ("x", "residual"):
            if name in plan.by_name:
                buffer = plan.buffer(name)
                rng = torch.Generator().manual_seed(len(name))
                values = samples.normal(rng, 65, buffer.columns)
                found[name] = values[:rows].to(TORCH_DTYPES[buffer.dtype])
        return found  # type: ignore[return-value]

    def results(self, rows: int) -> dict[str, Tensor]:
        given = self.given(rows)
        memory = run(self.plan, CALLS, rows_of_one(rows), self.weights, given)
        return {name: memory.read(self.plan.buffer(name)) for name in written(self.plan)}


def written(plan: Plan) -> list[str]:
    return [b.name for b in plan.buffers if b.kind == "arena" and b.name not in ("x", "residual")]


@cache
def _sketch(case: Case) -> tuple[Plan, dict[str, Value]]:
    s = Sketch()
    whole = s.rows("x", case.columns * (2 if case.of_view else 1), form=case.dtype)
    x = s.view("columns", whole, case.columns, case.columns) if case.of_view else whole
    weight = s.weight("weight", drawn(case.form, case.outputs, case.columns), case.form)
    bias = s.vector("bias", case.outputs) if case.with_bias else None
    stores: tuple[str, ...] = ()
    if case.kernel == "linear":
        s.call("linear", x, weight, bias, form=case.dtype)
    else:
        made = s.call("linear", x, weight, bias, out="made")
        stores = _after(s, case, made)
    return one_group(s.plan(), case.kernel, stores), s.weights


def _after(s: Sketch, case: Case, made: str) -> tuple[str, ...]:
    """What follows the product; returns what is stored besides the last result."""
    if case.kernel == "linear_soft_cap":
        s.call("soft_cap", made, cap=0.5)
        return ()
    if case.kernel == "gated_linear":
        half = case.outputs // 2
        gate, up = (s.view(n, made, at, half) for n, at in (("gate", 0), ("up", half)))
        s.call("gate", gate, up, kind="silu", form=case.dtype)
        return ()
    total = s.call("add", s.rows("residual", case.outputs), made, out="sum")
    if case.kernel == "linear_add":
        return ()
    weight = s.vector("norm", case.outputs)
    s.call("rms_norm", total, weight, form=case.dtype, eps=1e-6)
    return (total,)


SPLIT = 1000  # columns that make three splits
FORMATS = (
    Case("linear", F32, 48, 50, "float32"),
    Case("linear", F32, SPLIT, 96, "float32"),
    Case("linear", BF16, 80, 320),
    Case("linear", BF16, SPLIT, 96),
    Case("linear", F16, 200, 96, "float16"),
    Case("linear", int8(200), 200, 50),
    Case("linear", int8(SPLIT), SPLIT, 50),
    Case("linear", int8(32), 96, 50),
    Case("linear", int8(64), 640, 50, "float32"),
    Case("linear", int4(32, 128), 640, 96),
    Case("linear", int4(32, 64), 192, 50, "float32"),
    Case("linear", int4(32, 32), 96, 50),
    Case("linear", int4(64, 64), 192, 50),
    Case("linear", int4(64, 128), 256, 50),
    Case("linear", int4(96, 96), 96, 50),
)
ZEROS = (
    Case("linear", with_zeros(int4(32, 32)), 96, 50),
    Case("linear", with_zeros(int8(64)), 192, 50),
    Case("linear", with_zeros(int4(128, 128)), 640, 96, "float32"),
    Case("linear", with_zeros(int8(SPLIT)), SPLIT, 50, "float16"),
    Case("linear_add_rms_norm", with_zeros(int4(64, 64)), 600, 50, with_bias=True),
    Case("gated_linear", with_zeros(int4(64, 64)), 200, 100, "float16"),
    Case("gated_linear", with_zeros(int8(128)), 640, 100),
)
# Zeros beside multipliers, in one piece, in splits, and with a last tile that is short.
BOTH = (
    Case("linear", with_zeros(int4(32, 128)), 640, 96),
    Case("gated_linear", with_zeros(int4(32, 128)), 330, 100, "float16"),
    Case("linear_add_rms_norm", with_zeros(int4(64, 128)), 1100, 50, with_bias=True),
    Case("linear", with_zeros(int4(32, 64)), 192, 50, "float32"),
    Case("linear", with_zeros(int4(16, 64)), 100, 50, "float16"),
    Case("gated_linear", with_zeros(int4(32, 128)), 640, 100),
)
# Rows whose last block is short, and those whose last tile is.
SHORT = (
    Case("linear", int4(32, 128), 330, 50),
    Case("linear", int8(128), 576, 50),
    Case("linear", int8(64), 37, 50),
    Case("linear", int4(64, 128), 200, 50),
    Case("linear", int4(16, 64), 192, 50),
)
HIGH = tuple(
    case
    for bits in (5, 6)
    for case in (
        Case("linear", with_zeros(in_bits(bits, 32, 128)), 640, 96),
        Case("gated_linear", with_zeros(in_bits(bits, 32, 128)), 330, 100, "float16"),
        Case("linear", in_bits(bits, 32, 32), 96, 50, "float32"),
        Case("linear", in_bits(bits, 16, 64), 100, 50),
        Case("linear_add_rms_norm", with_zeros(in_bits(bits, 128, 128)), 640, 50),
    )
)
LEVELS = (
    Case("linear", *TWO_LEVELS["Q4_K"], 50, "float32"),
    Case("gated_linear", *TWO_LEVELS["Q6_K"], 100, "float16"),
    Case("linear", *TWO_LEVELS["Q4_1"], 50, "float32"),
    Case("linear", *TWO_LEVELS["IQ4_XS"], 50),
    Case("linear_add_rms_norm", *TWO_LEVELS["Q5_K"], 50, with_bias=True),
    Case("linear", *TWO_LEVELS["Q5_1"], 50, "float16"),
    Case("linear", *TWO_LEVELS["Q3_K"], 50, "float32"),
    Case("linear_add", *TWO_LEVELS["Q2_K"], 50),
    Case("linear", *TWO_LEVELS["IQ4_NL"], 50, "float32"),
    Case("gated_linear", TWO_LEVELS["Q4_K"][0], SPLIT, 100),
    Case("linear", TWO_LEVELS["Q6_K"][0], SPLIT, 96, of_view=True),
)
# Blocks in pairs, also in splits, and a row of one block.
OF_PAIRS = (
    Case("linear", *PAIRS[5], 50),
    Case("linear", *PAIRS[1], 50),
    Case("gated_linear", *PAIRS[2], 100, "float16"),
    Case("linear", *PAIRS[0], 50, "float32"),
    Case("linear_add", *PAIRS[3], 50),
    Case("linear", *PAIRS[4], 50, "float32"),
    Case("gated_linear", *PAIRS[6], 100),
    Case("linear_add_rms_norm", with_zeros(int8(16)), SPLIT, 50, with_bias=True),
    Case("linear", int4(16, 16), SPLIT, 96, "float16", of_view=True),
    Case("linear", int8(16), 16, 50),
)
KERNELS = (
    Case("linear", BF16, 200, 50, with_bias=True),
    Case("linear", BF16, SPLIT, 50, with_bias=True, of_view=True),
    Case("linear_add", BF16, 80, 50),
    Case("linear_add", BF16, SPLIT, 50, with_bias=True),
    Case("linear_add", F32, SPLIT, 96, "float32"),
    Case("linear_add_rms_norm", BF16, 80, 50),
    Case("linear_add_rms_norm", BF16, SPLIT, 96, with_bias=True),
    Case("linear_add_rms_norm", int4(32, 128), 640, 96),
    Case("linear_soft_cap", BF16, 80, 320),
    Case("linear_soft_cap", BF16, SPLIT, 50),
    Case("gated_linear", BF16, 80, 320),
    Case("gated_linear", BF16, SPLIT, 100, with_bias=True),
    Case("gated_linear", F32, SPLIT, 96, "float32"),
    Case("gated_linear", int4(32, 128), 640, 100),
    Case("gated_linear", int8(96), 96, 100, "float16"),
)
# The same in float16, in one piece and in splits.
HALVES = (
    Case("linear_add_rms_norm", F16, SPLIT, 96, "float16", with_bias=True),
    Case("linear", F16, SPLIT, 50, "float16", with_bias=True, of_view=True),
    Case("linear", int8(200), 200, 50, "float16"),
    Case("linear", int8(64), 640, 50, "float16"),
    Case("linear", int4(32, 128), 640, 96, "float16"),
    Case("linear", int4(32, 32), 96, 50, "float16"),
    Case("linear_add", F16, 80, 50, "float16"),
    Case("linear_add", int8(SPLIT), SPLIT, 50, "float16"),
    Case("linear_soft_cap", F16, SPLIT, 50, "float16"),
    Case("gated_linear", F16, SPLIT, 100, "float16", with_bias=True),
    Case("gated_linear", int4(32, 128), 640, 100, "float16"),
)
# What is stored may round to the other neighbour; near zero, sums in another order differ by more.
LOOSE = {
    torch.float32: KernelTolerance(1e-5, 5e-5),
    torch.bfloat16: KernelTolerance(8e-3, 2e-4),
    torch.float16: KernelTolerance(1e-3, 1e-4),
}


@pytest.mark.cases(core=7, thorough=16)
@pytest.mark.parametrize(
    "case",
    core(
        *(
            LEVELS[0],
            *FORMATS[1::3],
            BOTH[0],
            *KERNELS[1::3],
            HALVES[0],
            SHORT[0],
            *ZEROS[:2],
            BOTH[1],
            *LEVELS[1:4],
            *HIGH[::5],
            *OF_PAIRS[:3],
        ),
        further=[*FORMATS, *KERNELS, *HALVES, *SHORT, *ZEROS, *BOTH, *HIGH, *LEVELS, *OF_PAIRS],
    ),
    ids=str,
)
def test_product(case: Case) -> None:
    """Rows are right in every class of rows, and equal to the bit in all of them."""
    runs = {rows: case.results(rows) for rows in ROWS}
    most = max(ROWS)
    right = expected(case.plan, rows_of_one(most), case.weights, case.given(most))
    for name, whole in runs[most].items():
        tolerance = LOOSE[whole.dtype]
        torch.testing.assert_close(whole, right[name], rtol=tolerance.rtol, atol=tolerance.atol)
        for rows in ROWS:
            assert torch.equal(runs[rows][name], whole[:rows]), f"{name} of {rows} rows"


def test_nothing_is_read_behind_the_first_block_of_a_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a row ends with it: behind the scales of the others is no memory of the matrix."""
    case = Case("linear", *PAIRS[5], 50)
    plan, inputs = case.plan, rows_of_one(3)
    memory = Memory.of(plan, inputs, case.weights, case.given(3))
    array = memory.arrays["weight", 0]
    begin = array.data_ptr() + FENCE
    end, seen = begin + array.numel() - 2 * FENCE, []

    def check(addresses: npt.NDArray[np.uint64], width: int) -> None:
        near = addresses[(addresses >= begin - FENCE) & (addresses < end + FENCE)]
        seen.extend([near, near + (width - 1)])

    monkeypatch.setattr(interpreter, "launch", partial(interpreter.launch, check=check))
    for call in CALLS["linear"](Operands(plan), Work(plan, plan.groups[0])):
        launch(memory, call, sizes_of(plan, inputs))
    whole = np.concatenate(seen)
    assert (whole.min(), whole.max()) == (begin, end - 1)


def test_head() -> None:
    """Rows of the program's result, fewer than the tokens of the step."""
    s = Sketch()
    x = s.rows("x", 80, form="bfloat16", rows="R")
    s.call("linear", x, s.weight("w", drawn(BF16, 320, 80)), into=s.logits(320))
    plan, inputs = one_group(s.plan(), "linear"), rows_of_one(5)
    inputs["logit_rows"] = torch.tensor([4, 0, 2]).int()
    given: dict[str, Value] = {"x": samples.normal(torch.Generator(), 3, 80).bfloat16()}
    logits = run(plan, CALLS, inputs, s.weights, given).read(plan.buffer("logits"))
    right = expected(plan, inputs, s.weights, given)["logits"]
    torch.testing.assert_close(logits, right, rtol=1e-5, atol=5e-5)


def test_every_kernel_is_tested() -> None:
    for cases in (KERNELS, HALVES):
        assert {case.kernel for case in cases} == set(CALLS)


def test_splits_are_of_the_matrix() -> None:
    programs = 2 * 132
    assert splits_of(1024, 2048, 64, programs).count == 8
    assert splits_of(151936, 1024, 64, programs).count == 1
    assert splits_of(50, SPLIT, 64, programs).count == 3
    whole = splits_of(50, SPLIT, 64, programs)
    assert (whole.count - 1) * whole.steps < -(-SPLIT // 64) <= whole.count * whole.steps


def test_parts() -> None:
    case = Case("linear", BF16, SPLIT, 96, with_bias=True)
    parts = product_parts(Operands(case.plan), case.plan.instructions[0])
    assert (parts.columns, parts.few, parts.many) == (96, 3, 1)
    assert parts.call.workspace_bytes == 4 * 96 * max(3 * FEW_ROWS, 160)


def test_another_order_of_splits_shows() -> None:
    """The test of bits sees splits that depend on the number of rows."""
    rng = torch.Generator().manual_seed(0)
    x, weight = samples.normal(rng, 65, SPLIT), samples.weight(rng, 96, SPLIT)
    pairs = zip(x.split(384, -1), weight.split(384, -1), strict=True)
    assert not torch.equal(x @ weight.T, sum(a @ b.T for a, b in pairs))


@pytest.mark.parametrize(
    "form, columns, dtype",
    [
        (BF16, 64, "float32"),
        (F16, 64, "bfloat16"),
        (int8(24), 48, "bfloat16"),
        (int8(20), 80, "bfloat16"),
        (int4(32, 32), 64, "int8"),
    ],
)
def test_what_products_do_not_take(form: Format, columns: int, dtype: DType) -> None:
    case = Case("linear", BF16, 64, 32)
    plan = replace(
        case.plan,
        buffers=tuple(
            replace(b, format=form, shape=(32, columns)) if b.kind == "weight"
            else replace(b, format=Format(dtype)) if b.name == "x" else b
            for b in case.plan.buffers
        ),
    )  # fmt: skip
    with pytest.raises(CodegenError, match="CUDA"):
        product_parts(Operands(plan), plan.instructions[0])
