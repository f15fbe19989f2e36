"""The launches of recurrences, a cell of tokens at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ingot.artifact.cells import GRID, KEPT, Cells
from ingot.artifact.launches import MOST_ROWS, Constant, Extent
from ingot.artifact.plan import Instruction
from ingot.targets.cuda.call import Call, Choice, Emit
from ingot.targets.cuda.calls_experts import NOWHERE
from ingot.targets.cuda.calls_heads import expect_float32
from ingot.targets.cuda.calls_records import record_of, sequences_of, step_of, strides_of
from ingot.targets.cuda.head_parts import expect, expect_head, width_of
from ingot.targets.cuda.operands import Operands, Pointer, RowsOperand, Size
from ingot.targets.cuda.products import passed
from ingot.targets.work import Work

RULES = ("add", "delta", "low_rank")
MOST_KEYS, MOST_VALUES = 16, 64  # rows and columns of a matrix that a program takes at a time
COLUMNS = 256  # of a program that keeps rows


@dataclass(frozen=True)
class Recurrence:
    """The operands of a recurrence. Raises CodegenError for those that kernels do not take."""

    operands: Operands
    i: Instruction

    @cached_property
    def rows(self) -> Mapping[str, RowsOperand]:
        """What tokens bring, by name."""
        return {n: self.operands.rows(self.i, n) for n in ("q", *KEPT) if n in self.i.inputs}

    @cached_property
    def cells(self) -> Cells:
        shapes = {name: each.buffer.shape[1:] for name, each in self.rows.items()}
        return Cells({name: tuple(map(int, shape)) for name, shape in shapes.items()}, GRID)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Keys and values: how many, and their columns."""
        return *self.cells.shapes["k"], *self.cells.shapes["v"]  # type: ignore[return-value]

    @property
    def constants(self) -> dict[str, Constant]:
        """Of the operands and of records, and 0 for each operand that is absent."""
        groups, size, heads, width = self.sizes
        at = {f"{n.upper()}_AT": place for n, place in self.cells.offsets.items() if n != "k"}
        return {
            **dict.fromkeys(("BETA_STRIDE", "A_STRIDE", "B_STRIDE"), 0), **strides_of(self.rows),
            **at, "RECORD": math.prod(self.cells.record), "ROW": self.cells.row,
            "HEADS": heads, "GROUP": heads // groups, "SIZE": size, "WIDTH": width,
        }  # fmt: skip

    def passed(
        self, names: tuple[str, ...], **more: Pointer | None
    ) -> tuple[dict[str, Pointer | Size], dict[str, Constant]]:
        """Arguments of these names, with a constant 0 for each that is absent."""
        step = step_of(self.operands, self.i)
        records = {"state": record_of(self.operands, self.i, "state")}
        given = {name: each.pointer for name, each in self.rows.items()}
        slots = {"spans": step["spans"], "slots": step["records"]}
        return passed(names, {**given, **records, **slots, **more})

    def check(self) -> None:
        _, size, _, _ = self.sizes
        rule, grid = self.i.attrs["rule"], self.i.attrs["grid"]
        expect(self.i, rule in RULES, f"the rule {rule!r}", ", ".join(RULES))
        expect(self.i, grid == GRID, f"a grid of {grid}", f"one of {GRID} tokens")
        expect_head(self.i, size)
        for name, each in self.rows.items():
            expect_float32(self.i, name, each.pointer)


def recurrence(operands: Operands, work: Work) -> list[Call]:
    """All cells of a step, and then the rows of cells that begin in it: these take the place of
    rows that programs of the first launch read. A sequence with one row has none.

    Raises:
        CodegenError: no kernel takes its operands.
    """
    of = Recurrence(operands, work.member("recurrence"))
    of.check()
    return [advanced(of), kept(of)]


def advanced(of: Recurrence) -> Call:
    out, skip = of.operands.rows(of.i, "out"), of.operands.weight(of.i, "skip")
    _, size, heads, width = of.sizes
    arguments, absent = of.passed(
        ("q", *KEPT, "skip", "spans", "slots", "state", "out"), skip=skip, out=out.pointer
    )
    tile = tile_of(size, width)
    constants: dict[str, Constant] = {
        **absent, **of.constants, **tile, "OUT_STRIDE": out.stride, "RULE": str(of.i.attrs["rule"]),
        "BY_KEY": len(of.cells.shapes["decay"]) > 1, "WITH_BETA": "beta" in of.rows,
        "WITH_SKIP": skip is not None,
    }  # fmt: skip
    blocks = -(-width // tile["WIDTHS"])
    grid = sequences_of(of.operands, of.i), Extent(times=heads), Extent(times=blocks)
    choice = Choice("recurrence.advance", constants, grid, num_warps=4, num_stages=1)
    return Call(arguments, (choice,))


def kept(of: Recurrence) -> Call:
    arguments, absent = of.passed((*KEPT, "spans", "slots", "state"))
    constants = {n: v for n, v in of.constants.items() if n != "Q_STRIDE"}
    constants = {**absent, **constants, "COLUMNS": COLUMNS}
    blocks = -(-max(of.cells.columns.values()) // COLUMNS)
    grid = sequences_of(of.operands, of.i), Extent(times=GRID - 1), Extent(times=blocks)
    choice = Choice("recurrence.keep", constants, NOWHERE, size=MOST_ROWS, most=1)
    return Call(arguments, (choice, Choice("recurrence.keep", constants, grid)))


def tile_of(size: int, width: int) -> dict[str, int]:
    """What a program takes of a matrix at a time: powers of two that products sum over."""
    sizes, widths = width_of(size), width_of(width)
    return {"SIZES": sizes, "KEYS": min(sizes, MOST_KEYS), "WIDTHS": min(widths, MOST_VALUES)}


CALLS: Mapping[str, Emit] = {"recurrence": recurrence}
