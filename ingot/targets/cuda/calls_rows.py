"""The launches of what is done row by row: norms, gathered rows, numbers one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ingot.artifact.launches import Constant
from ingot.artifact.plan import Instruction
from ingot.errors import CodegenError
from ingot.targets.cuda.call import Call, Choice, Emit
from ingot.targets.cuda.calls_heads import expect_float32
from ingot.targets.cuda.levels import FLOATS
from ingot.targets.cuda.operands import Operands, Pointer, RowsOperand, Size
from ingot.targets.cuda.products import (
    MATRIX,
    matrix_of,
    passed,
    power_of_two,
    row_grid,
    row_warps,
)
from ingot.targets.cuda.weights import tile_columns
from ingot.targets.work import Work, where

COLUMNS = 512  # of a program of what is done number by number
HEAD_NUMBERS = 2048  # of a program that norms heads
ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu", "relu2", "log1p_relu")


@dataclass(frozen=True, slots=True)
class NormedHeads:
    """Rows whose heads are normed one by one; a row of two dimensions is a single head."""

    x: RowsOperand
    out: RowsOperand

    @property
    def size(self) -> int:
        """Columns of a head."""
        return int(self.x.buffer.shape[-1])

    def choice(self, function: str, constants: Mapping[str, Constant]) -> Choice:
        """The kernel: a program has a whole row, or some heads of one."""
        heads, columns = self.x.columns // self.size, power_of_two(self.size)
        block = max(1, min(power_of_two(heads), HEAD_NUMBERS // columns))
        own: dict[str, Constant] = {
            "X_STRIDE": self.x.stride, "OUT_STRIDE": self.out.stride, "HEADS": heads,
            "SIZE": self.size, "BLOCK_HEADS": block, "COLUMNS": columns,
        }  # fmt: skip
        grid, warps = row_grid(self.x.symbol, heads, block), row_warps(block * columns)
        return Choice(function, {**own, **constants}, grid, num_warps=warps)


def embedding(operands: Operands, work: Work) -> list[Call]:
    i = work.member("embedding")
    weight, tokens, out = (operands.buffer(i, name) for name in ("weight", "tokens", "out"))
    rows, indices = operands.rows_of(out), operands.rows_of(tokens).pointer
    height, width = map(int, weight.shape)
    if not weight.format.is_scaled:
        table = RowsOperand(weight, _present(operands.weight(i, "weight")), width)
        return [_gathered(table, indices, rows)]
    pointers, constants = matrix_of(weight)
    arguments, absent = passed(
        (*MATRIX, "indices", "out"),
        {**pointers, "indices": indices, "out": rows.pointer},
    )
    tile = tile_columns(width, weight.format)
    sizes = {
        "TILE": tile,
        "HEIGHT": height,
        "WIDTH": width,
        "OUT_STRIDE": rows.stride,
        "COLUMNS": COLUMNS,
    }
    grid = row_grid(rows.symbol, width, COLUMNS)
    choice = Choice("rows.scaled_rows", {**absent, **constants, **sizes}, grid)
    return [Call(arguments, (choice,))]


def select_rows(operands: Operands, work: Work) -> list[Call]:
    i = work.member("select_rows")
    x, indices, out = (operands.rows(i, name) for name in ("x", "rows", "out"))
    return [_gathered(x, indices.pointer, out)]


def pool(operands: Operands, work: Work) -> list[Call]:
    i = work.member("pool")
    x, spans, out = (operands.rows(i, name) for name in ("x", "spans", "out"))
    constants: dict[str, Constant] = {
        "X_STRIDE": x.stride, "OUT_STRIDE": out.stride, "WIDTH": out.columns,
        "HOW": str(i.attrs["how"]), "COLUMNS": COLUMNS,
    }  # fmt: skip
    arguments = {"x": x.pointer, "spans": spans.pointer, "out": out.pointer}
    grid = row_grid(out.symbol, out.columns, COLUMNS)
    return [Call(arguments, (Choice("rows.pool", constants, grid),))]


def rms_norm(operands: Operands, work: Work) -> list[Call]:
    """The norm of rows, or of each head of a row."""
    i = work.member("rms_norm")
    heads = NormedHeads(operands.rows(i, "x"), operands.rows(i, "out"))
    arguments = {"x": heads.x.pointer, "weight": _weight(operands, i), "out": heads.out.pointer}
    return [Call(arguments, (heads.choice("norm.rms_norm", _norm_constants(i)),))]


def add_rms_norm(operands: Operands, work: Work) -> list[Call]:
    """A sum and its norm."""
    add, norm = work.member("add"), work.member("rms_norm")
    x, y, total = (operands.rows(add, name) for name in ("x", "y", "out"))
    out = operands.rows(norm, "out")
    columns = power_of_two(out.columns)
    constants: dict[str, Constant] = {
        "X_STRIDE": x.stride, "Y_STRIDE": y.stride, "TOTAL_STRIDE": total.stride,
        "OUT_STRIDE": out.stride, "SIZE": out.columns, **_norm_constants(norm),
        "COLUMNS": columns,
    }  # fmt: skip
    arguments = {
        "x": x.pointer, "y": y.pointer, "weight": _weight(operands, norm),
        "total": total.pointer, "out": out.pointer,
    }  # fmt: skip
    choice = Choice(
        "norm.add_rms_norm", constants, row_grid(out.symbol), num_warps=row_warps(columns)
    )
    return [Call(arguments, (choice,))]


def layer_norm(operands: Operands, work: Work) -> list[Call]:
    """The norm of rows, or of each head of a row, which may have weights of its own."""
    i = work.member("layer_norm")
    heads = NormedHeads(operands.rows(i, "x"), operands.rows(i, "out"))
    weight, bias = operands.buffer(i, "weight"), operands.weight(i, "bias")
    arguments, absent = passed(
        ("x", "weight", "bias", "out"),
        {
            "x": heads.x.pointer,
            "weight": _weight(operands, i),
            "bias": bias,
            "out": heads.out.pointer,
        },
    )
    constants: dict[str, Constant] = {
        **absent, "WEIGHT_STRIDE": heads.size if weight.shape != (heads.size,) else 0,
        "EPS": float(i.attrs["eps"]), "WITH_BIAS": bias is not None,
    }  # fmt: skip
    return [Call(arguments, (heads.choice("norm.layer_norm", constants),))]


def gate(operands: Operands, work: Work) -> list[Call]:
    i = work.member("gate")
    return [_by_number(operands, i, "rows.gate", {"KIND": _activation(i)})]


def activation(operands: Operands, work: Work) -> list[Call]:
    i = work.member("activation")
    return [_by_number(operands, i, "rows.activation", {"KIND": _activation(i)})]


def head_scale(operands: Operands, work: Work) -> list[Call]:
    i = work.member("head_scale")
    size = int(operands.buffer(i, "x").shape[-1])
    return [_by_number(operands, i, "rows.head_scale", {"SIZE": size})]


def add(operands: Operands, work: Work) -> list[Call]:
    return [_by_number(operands, work.member("add"), "rows.add", {})]


def concat(operands: Operands, work: Work) -> list[Call]:
    i = work.member("concat")
    sizes = {f"{n.upper()}_SIZE": int(operands.buffer(i, n).shape[-1]) for n in ("x", "y")}
    return [_by_number(operands, i, "rows.concat", sizes)]


def reorder(operands: Operands, work: Work) -> list[Call]:
    i = work.member("reorder")
    x, out, order = operands.rows(i, "x"), operands.rows(i, "out"), _weight(operands, i, "order")
    expect_float32(i, "order", order)
    constants = {
        "X_STRIDE": x.stride, "OUT_STRIDE": out.stride, "WIDTH": out.columns, "COLUMNS": COLUMNS
    }  # fmt: skip
    arguments = {"x": x.pointer, "order": order, "out": out.pointer}
    grid = row_grid(out.symbol, out.columns, COLUMNS)
    return [Call(arguments, (Choice("rows.reorder", constants, grid),))]


def mul(operands: Operands, work: Work) -> list[Call]:
    i = work.member("mul")
    return [_by_number(operands, i, "rows.mul", {"FACTOR": float(i.attrs["factor"])})]


def clamp(operands: Operands, work: Work) -> list[Call]:
    i = work.member("clamp")
    bounds = {name.upper(): float(i.attrs[name]) for name in ("low", "high")}
    return [_by_number(operands, i, "rows.clamp", bounds)]


def soft_cap(operands: Operands, work: Work) -> list[Call]:
    i = work.member("soft_cap")
    return [_by_number(operands, i, "rows.soft_cap", {"CAP": float(i.attrs["cap"])})]


def cast(operands: Operands, work: Work) -> list[Call]:
    return [_by_number(operands, work.member("cast"), "rows.mul", {"FACTOR": 1.0})]


def _by_number(
    operands: Operands, i: Instruction, function: str, constants: Mapping[str, Constant]
) -> Call:
    """A kernel whose arguments are named as those of the primitive, and `out`."""
    rows = {name: operands.rows(i, name) for name in (*i.inputs, "out")}
    out = rows["out"]
    if out.buffer.format.is_scaled:
        raise CodegenError(
            f"{where(i)} rounds to {out.buffer.format}",
            hint=f"Activations on CUDA: {', '.join(FLOATS)}.",
        )
    strides = {f"{name.upper()}_STRIDE": each.stride for name, each in rows.items()}
    sizes = {"WIDTH": out.columns, "COLUMNS": COLUMNS}
    grid = row_grid(out.symbol, out.columns, COLUMNS)
    choice = Choice(function, {**strides, **sizes, **constants}, grid)
    return Call({name: each.pointer for name, each in rows.items()}, (choice,))


def _gathered(x: RowsOperand, indices: Pointer, out: RowsOperand) -> Call:
    """Rows of a buffer or a table, by their numbers."""
    constants = {
        "X_STRIDE": x.stride, "OUT_STRIDE": out.stride, "WIDTH": out.columns, "COLUMNS": COLUMNS
    }  # fmt: skip
    arguments: dict[str, Pointer | Size] = {
        "x": x.pointer, "indices": indices, "out": out.pointer
    }  # fmt: skip
    grid = row_grid(out.symbol, out.columns, COLUMNS)
    return Call(arguments, (Choice("rows.select_rows", constants, grid),))


def _norm_constants(norm: Instruction) -> Mapping[str, Constant]:
    return {"EPS": float(norm.attrs["eps"]), "OFFSET": float(norm.attrs["offset"])}


def _weight(operands: Operands, i: Instruction, name: str = "weight") -> Pointer:
    return _present(operands.weight(i, name))


def _present(pointer: Pointer | None) -> Pointer:
    assert pointer is not None, "the primitive has this weight"
    return pointer


def _activation(i: Instruction) -> str:
    kind = str(i.attrs["kind"])
    if kind not in ACTIVATIONS:
        raise CodegenError(
            f"{where(i)} has the activation {kind!r}", hint=f"Known: {', '.join(ACTIVATIONS)}."
        )
    return kind


CALLS: Mapping[str, Emit] = {
    "activation": activation,
    "add": add,
    "add_rms_norm": add_rms_norm,
    "cast": cast,
    "concat": concat,
    "embedding": embedding,
    "gate": gate,
    "head_scale": head_scale,
    "layer_norm": layer_norm,
    "mul": mul,
    "pool": pool,
    "reorder": reorder,
    "rms_norm": rms_norm,
    "select_rows": select_rows,
    "clamp": clamp,
    "soft_cap": soft_cap,
}
