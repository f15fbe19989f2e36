"""The launches of products and of what follows them in their kernel of the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ingot.artifact.launches import Constant
from ingot.artifact.plan import Instruction
from ingot.targets.cuda.call import Call, Choice, Emit
from ingot.targets.cuda.operands import Operands, Pointer, RowsOperand, workspace
from ingot.targets.cuda.products import (
    Constants,
    Epilogue,
    Product,
    passed,
    pointer_of,
    power_of_two,
    row_grid,
    row_warps,
)
from ingot.targets.cuda.tiles import FEW_ROWS
from ingot.targets.work import Work

COLUMNS = 512  # of a program of a second stage: a load of 16 bytes a thread


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a product in the workspace: float32 [parts, rows, columns], without its bias.

    A part begins `rows * columns` numbers after the one before it, for the rows of the step.
    """

    call: Call  # the launch that fills them
    pointer: Pointer
    columns: int
    few: int  # parts of a step of at most FEW_ROWS rows
    many: int  # of a larger step


def product_parts(operands: Operands, linear: Instruction) -> Parts:
    """The parts of a product whose kernel has a second stage of its own."""
    product = Product(operands, linear)
    return Parts(product.call(None), workspace(), product.outputs, product.splits.count, 1)


def linear(operands: Operands, work: Work) -> list[Call]:
    """A product with what is done to each of its numbers: a residual, a soft cap."""
    last = work.members[-1]
    cap = float(last.attrs["cap"]) if last.op == "soft_cap" else 0.0
    product = Product(operands, work.member("linear"))
    residual = _residual(operands, work) if last.op == "add" else None
    epilogue = Epilogue(operands.rows(last, "out"), residual, cap)
    if product.splits.count == 1:
        return [product.call(epilogue)]
    return [product.call(epilogue), _finish(product, epilogue)]


def linear_add_rms_norm(operands: Operands, work: Work) -> list[Call]:
    """A product, a residual that is added to it, and the norm of the sum."""
    product = Product(operands, work.member("linear"))
    total = operands.rows(work.member("add"), "out")
    epilogue = Epilogue(total, _residual(operands, work))
    return [product.call(epilogue), _norm(product, epilogue, work.member("rms_norm"))]


def gated_linear(operands: Operands, work: Work) -> list[Call]:
    """A product and the gate of its halves."""
    gate = work.member("gate")
    product, out = Product(operands, work.member("linear")), operands.rows(gate, "out")
    kind = str(gate.attrs["kind"])
    multiply = product.gated(out, kind)
    if product.splits.count == 1:
        return [multiply]
    arguments, absent = passed(
        ("parts", "bias", "out", "rows"),
        {"parts": workspace(), "bias": product.bias, "out": out.pointer, "rows": product.rows},
    )
    constants: dict[str, Constant] = {
        **absent, "HALF": out.columns, "OUT_STRIDE": out.stride, "KIND": kind,
        "WITH_BIAS": product.bias is not None, "PARTS": product.splits.count, "COLUMNS": COLUMNS,
    }  # fmt: skip
    grid = row_grid(product.x.symbol, out.columns, COLUMNS)
    few = Choice("finish.gate", constants, grid, product.x.symbol, FEW_ROWS)
    return [multiply, Call(arguments, (few,), multiply.workspace_bytes)]


def _finish(product: Product, epilogue: Epilogue) -> Call:
    """The second stage of a step of few rows."""
    arguments, absent = passed(
        ("parts", "bias", "residual", "out", "rows"),
        {
            "parts": workspace(),
            "bias": product.bias,
            **epilogue.pointers,
            "rows": product.rows,
        },
    )
    constants = {**absent, **epilogue.constants, **_width(product)}
    constants |= {"PARTS": product.splits.count, "COLUMNS": COLUMNS}
    grid = row_grid(product.x.symbol, product.outputs, COLUMNS)
    return Call(
        arguments,
        (Choice("finish.finish", constants, grid, product.x.symbol, FEW_ROWS),),
        product.call(epilogue).workspace_bytes,
    )


def _norm(product: Product, epilogue: Epilogue, norm: Instruction) -> Call:
    """The second stage with a norm. The sums of many rows are complete before it."""
    splits, out, total = product.splits.count, product.operands.rows(norm, "out"), epilogue.out
    weight = product.operands.weight(norm, "weight")
    residual = pointer_of(epilogue.residual)
    added = {"parts": workspace(), "bias": product.bias, "residual": residual}
    arguments, absent = passed(
        ("parts", "bias", "residual", "weight", "total", "out", "rows"),
        {
            **(added if splits > 1 else {}),
            **{"weight": weight, "total": total.pointer, "out": out.pointer, "rows": product.rows},
        },
    )
    columns = power_of_two(product.outputs)
    constants: dict[str, Constant] = {
        **absent, **_width(product), "RESIDUAL_STRIDE": epilogue.constants["RESIDUAL_STRIDE"],
        "TOTAL_STRIDE": total.stride, "OUT_STRIDE": out.stride, "EPS": float(norm.attrs["eps"]),
        "OFFSET": float(norm.attrs["offset"]), "COLUMNS": columns,
    }  # fmt: skip
    symbol, warps = product.x.symbol, row_warps(columns)
    grid = row_grid(symbol)
    few = Choice("finish.norm", constants | {"PARTS": splits}, grid, symbol, FEW_ROWS, warps)
    complete = constants | {"PARTS": 0, "WITH_BIAS": False}
    many = Choice("finish.norm", complete, grid, num_warps=warps)
    choices = (few, many) if splits > 1 else (many,)
    return Call(arguments, choices, product.call(epilogue).workspace_bytes)


def _width(product: Product) -> Constants:
    return {"WIDTH": product.outputs, "WITH_BIAS": product.bias is not None}


def _residual(operands: Operands, work: Work) -> RowsOperand:
    """Residual that is added to the product."""
    made = work.member("linear").outputs.values()
    (other,) = (name for name in work.member("add").inputs.values() if name not in made)
    return operands.rows_of(operands.plan.buffer(other))


CALLS: Mapping[str, Emit] = {
    "gated_linear": gated_linear,
    "linear": linear,
    "linear_add": linear,
    "linear_add_rms_norm": linear_add_rms_norm,
    "linear_soft_cap": linear,
}
