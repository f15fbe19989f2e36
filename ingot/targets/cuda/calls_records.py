"""The launches of mixers that keep one record of a sequence."""

from __future__ import annotations

from collections.abc import Mapping

from ingot.artifact.launches import MOST_ROWS, Constant, Extent, Grid
from ingot.artifact.plan import Instruction
from ingot.targets.cuda.call import ONE, Call, Choice, Emit
from ingot.targets.cuda.calls_heads import expect_float32
from ingot.targets.cuda.head_parts import expect
from ingot.targets.cuda.operands import Operands, Pointer, RowsOperand
from ingot.targets.cuda.products import passed, power_of_two
from ingot.targets.work import Work

STEP = ("spans", "records")
COLUMNS = 256  # of a program that reads last rows
ROWS = 16  # that it does in turn
SCANNED = 64  # channels of a program that scans


def token_shift(operands: Operands, work: Work) -> list[Call]:
    i = work.member("token_shift")
    x, out = operands.rows(i, "x"), operands.rows(i, "out")
    arguments = {
        "x": x.pointer, "tail": record_of(operands, i, "tail"), **step_of(operands, i),
        "out": out.pointer,
    }  # fmt: skip
    return [Call(arguments, (last_rows(operands, i, "records.token_shift", 1, {}),))]


def short_conv(operands: Operands, work: Work) -> list[Call]:
    i = work.member("short_conv")
    x, out = operands.rows(i, "x"), operands.rows(i, "out")
    taps, bias = int(operands.buffer(i, "weight").shape[0]), operands.weight(i, "bias")
    expect(i, taps <= ROWS, f"{taps} taps", f"up to {ROWS}")
    arguments, absent = passed(
        ("x", "weight", "bias", "tail", *STEP, "out"),
        {
            "x": x.pointer, "weight": operands.weight(i, "weight"), "bias": bias,
            "tail": record_of(operands, i, "tail"), **step_of(operands, i), "out": out.pointer,
        },
    )  # fmt: skip
    constants: dict[str, Constant] = {
        **absent, "WITH_BIAS": bias is not None,
        "ACTIVATION": "silu" if i.attrs["activates"] else "identity",
    }  # fmt: skip
    return [Call(arguments, (last_rows(operands, i, "records.short_conv", taps - 1, constants),))]


def selective_scan(operands: Operands, work: Work) -> list[Call]:
    i = work.member("selective_scan")
    rows = {name: operands.rows(i, name) for name in ("x", "dt", "b", "c")}
    out, depth = operands.rows(i, "out"), rows["b"].columns
    weights = {name: _weight(operands, i, name) for name in ("rate", "skip")}
    for name, pointer in (*_pointers(rows).items(), *weights.items()):
        expect_float32(i, name, pointer)
    arguments = {
        **_pointers(rows), **weights, **step_of(operands, i),
        "state": record_of(operands, i, "state"), "out": out.pointer,
    }  # fmt: skip
    constants: dict[str, Constant] = {
        **strides_of({**rows, "out": out}), "DEPTH": depth, "WIDTH": out.columns,
        "DEPTHS": power_of_two(depth), "COLUMNS": SCANNED,
    }  # fmt: skip
    grid: Grid = (sequences_of(operands, i), Extent(times=-(-out.columns // SCANNED)), ONE)
    return [Call(arguments, (Choice("scan.selective_scan", constants, grid, num_warps=2),))]


def last_rows(
    operands: Operands, i: Instruction, function: str, kept: int, constants: Mapping[str, Constant]
) -> Choice:
    """The kernel of what reads so many rows before each row."""
    x, out = operands.rows(i, "x"), operands.rows(i, "out")
    grid = (
        sequences_of(operands, i),
        Extent(size=MOST_ROWS, per=ROWS),
        Extent(times=-(-out.columns // COLUMNS)),
    )
    sizes = {"KEPT": kept, "WIDTH": out.columns, "ROWS": ROWS, "COLUMNS": COLUMNS}
    return Choice(function, {**strides_of({"x": x, "out": out}), **sizes, **constants}, grid)


def record_of(operands: Operands, i: Instruction, name: str) -> Pointer:
    """The records of all slots, which are float32."""
    pointer, _ = operands.state(i, name)
    expect_float32(i, name, pointer)
    return pointer


def step_of(operands: Operands, i: Instruction) -> dict[str, Pointer]:
    """What says where the rows of each sequence lie, and its record."""
    return {name: operands.rows(i, name).pointer for name in STEP}


def sequences_of(operands: Operands, i: Instruction) -> Extent:
    return Extent(size=operands.rows(i, "spans").symbol)


def strides_of(rows: Mapping[str, RowsOperand]) -> dict[str, Constant]:
    return {f"{name.upper()}_STRIDE": each.stride for name, each in rows.items()}


def _pointers(rows: Mapping[str, RowsOperand]) -> dict[str, Pointer]:
    return {name: each.pointer for name, each in rows.items()}


def _weight(operands: Operands, i: Instruction, name: str) -> Pointer:
    pointer = operands.weight(i, name)
    assert pointer is not None, "the primitive has this weight"
    return pointer


CALLS: Mapping[str, Emit] = {
    "selective_scan": selective_scan,
    "short_conv": short_conv,
    "token_shift": token_shift,
}
