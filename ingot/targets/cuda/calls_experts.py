"""The launches of mixtures of experts: their routers, and their two products."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from ingot.artifact.formats import stored_bytes
from ingot.artifact.launches import Constant, Extent, Grid
from ingot.artifact.plan import Buffer, Instruction, aligned
from ingot.errors import CodegenError
from ingot.targets.cuda.call import ONE, Call, Choice, Emit
from ingot.targets.cuda.calls_rows import ACTIVATIONS
from ingot.targets.cuda.operands import Operands, Pointer, Rows, Size, workspace
from ingot.targets.cuda.products import (
    Constants,
    check_operands,
    matrix_of,
    passed,
    power_of_two,
    row_grid,
    row_warps,
)
from ingot.targets.cuda.tiles import FEW_ROWS, Tile, Tiles, Tiling, tiling_of
from ingot.targets.cuda.weights import matrix_bytes
from ingot.targets.work import Work, where

CLAMPED = "clamped"
SCORINGS = ("softmax", "sigmoid")
GROUP_SCORES = ("max", "top2")
DIRECT_ROWS = 16  # of a step whose picks have a program each, and no lists
TILES_IN_TURN = 8  # of the picks of an expert, which a program does if all rows pick that one
LEAST_SLOTS = 32  # for the experts of a row: the lanes of a warp
COLUMNS = 512  # of a program that works on columns of a row
PICKS_AT_ONCE = 1024
NOWHERE: Grid = (Extent(times=0), ONE, ONE)  # nothing is launched
MULTIPLY = ("x", "w", "multipliers", "scales", "bias", "shares", "lists", "counts")


def route(operands: Operands, work: Work) -> list[Call]:
    i = work.member("route")
    logits, shares = operands.rows(i, "logits"), operands.rows(i, "out")
    attrs, bias = i.attrs, operands.weight(i, "bias")
    groups, kept, picks = (int(attrs[name]) for name in ("groups", "kept_groups", "top_k"))
    size = logits.columns // groups
    _expect(i, attrs["scoring"] in SCORINGS, f"scores by {attrs['scoring']!r}")
    _expect(i, attrs["group_score"] in GROUP_SCORES, f"scores groups by {attrs['group_score']!r}")
    even = logits.columns == size * groups and 0 < picks <= kept * size
    _expect(i, even, f"picks {picks} of {logits.columns} experts, in {kept} of {groups} groups")
    arguments, absent = passed(
        ("logits", "bias", "shares"),
        {"logits": logits.pointer, "bias": bias, "shares": shares.pointer},
    )
    blocks = power_of_two(groups), power_of_two(size)
    constants: dict[str, Constant] = {
        **absent, "LOGITS_STRIDE": logits.stride, "SHARES_STRIDE": shares.stride,
        "GROUPS": groups, "SIZE": size, "PICKS": picks, "KEPT_GROUPS": kept,
        "TOP2": attrs["group_score"] == "top2" and size > 1,
        "SIGMOID": attrs["scoring"] == "sigmoid", "NORMALISE": bool(attrs["normalise"]),
        "EPS": float(attrs["eps"]), "SCALE": float(attrs["scale"]), "WITH_BIAS": bias is not None,
        "BLOCK_GROUPS": blocks[0], "BLOCK_SIZE": blocks[1],
    }  # fmt: skip
    warps = row_warps(blocks[0] * blocks[1])
    choice = Choice("route.route", constants, row_grid(logits.symbol), num_warps=warps)
    return [Call(arguments, (choice,))]


def expert_gate(operands: Operands, work: Work) -> list[Call]:
    """The first product of experts, and its gates."""
    i = work.member("expert_gate")
    kind, stack, out = str(i.attrs["kind"]), Stack(operands, i), operands.rows(i, "out")
    _expect(i, kind in (*ACTIVATIONS, CLAMPED), f"has the gate {kind!r}")
    _expect(i, stack.outputs % 2 == 0, f"has matrices of {stack.outputs} rows, without halves")
    own: Constants = {
        "HALF": stack.outputs // 2, "KIND": kind, "LIMIT": float(i.attrs["limit"]),
    }  # fmt: skip
    outputs, tiles = stack.outputs // 2, stack.tiling.gated
    multiply = stack.multiply("experts.multiply_gated", own, {"out": out.pointer}, outputs, tiles)
    return [*stack.lists(out), multiply]


def expert_sum(operands: Operands, work: Work) -> list[Call]:
    """The second product of experts, and the sum of what they make of a row."""
    i = work.member("expert_sum")
    stack, out = Stack(operands, i), operands.rows(i, "out")
    parts = workspace(offset=stack.list_bytes)
    few, _, many = stack.tiling.tiles
    # Numbers of picks take registers, too, so tiles in between are as those of two halves.
    tiles = few, stack.tiling.gated[1], many
    multiply = stack.multiply(
        "experts.multiply", {"WIDTH": stack.outputs}, {"parts": parts}, stack.outputs, tiles,
        stack.part_bytes,
    )  # fmt: skip
    constants = {
        **stack.picking, "WIDTH": stack.outputs, "OUT_STRIDE": out.stride, "COLUMNS": COLUMNS,
    }  # fmt: skip
    arguments: dict[str, Pointer | Size] = {
        "parts": parts, "shares": stack.shares.pointer, "out": out.pointer,
    }  # fmt: skip
    grid = row_grid(out.symbol, stack.outputs, COLUMNS)
    add = Call(arguments, (Choice("experts.add_picks", constants, grid),), multiply.workspace_bytes)
    return [*stack.lists(), multiply, add]


@dataclass(frozen=True)
class Stack:
    """The matrices of experts that rows are multiplied with, and the picks of these rows.

    The workspace has the picks of each expert, their counts, the experts of each row, and then
    what the products store. Raises CodegenError for operands that kernels do not take.
    """

    operands: Operands
    product: Instruction

    def __post_init__(self) -> None:
        check_operands(self.product, self.x.buffer, self.weight)

    @cached_property
    def x(self) -> Rows:
        return self.operands.rows(self.product, "x")

    @cached_property
    def shares(self) -> Rows:
        return self.operands.rows(self.product, "shares")

    @cached_property
    def weight(self) -> Buffer:
        return self.operands.buffer(self.product, "weight")

    @property
    def experts(self) -> int:
        return int(self.weight.shape[0])

    @property
    def outputs(self) -> int:
        return int(self.weight.shape[1])

    @property
    def depth(self) -> int:
        return int(self.weight.shape[2])

    @property
    def picks(self) -> int:
        return int(self.product.attrs["top_k"])

    @cached_property
    def tiling(self) -> Tiling:
        """That of a matrix. Its sums have one split: experts and picks fill a GPU."""
        form, row_bits = self.weight.format, self.x.buffer.format.bits
        return tiling_of(self.outputs, self.depth, form, row_bits, self.operands.architecture)

    @property
    def picking(self) -> Constants:
        """What tells the picks of a row from its shares."""
        return {
            "EXPERTS": self.experts,
            "PICKS": self.picks,
            "SHARES_STRIDE": self.shares.stride,
            "SLOTS": max(LEAST_SLOTS, power_of_two(self.experts)),
        }

    @property
    def most_rows(self) -> int:
        return self.operands.plan.limits.bound(self.x.buffer.shape[0])

    @property
    def places(self) -> tuple[int, int, int]:
        """Where in the workspace the counts begin, the experts of each row, and what follows."""
        counts = aligned(stored_bytes("int32", self.experts * self.most_rows))
        picks = counts + aligned(stored_bytes("int32", self.experts))
        return counts, picks, picks + aligned(stored_bytes("int32", self.most_rows * self.picks))

    @property
    def list_bytes(self) -> int:
        return self.places[-1]

    @property
    def part_bytes(self) -> int:
        return stored_bytes("float32", self.most_rows * self.picks * self.outputs)

    def lists(self, out: Rows | None = None) -> list[Call]:
        """What fills the lists in a step of many rows, and `out` where it has no pick."""
        counts, picks, end = self.places
        given = {
            "shares": self.shares.pointer, "picks": workspace("int32", picks),
            "out": out.pointer if out else None,
        }  # fmt: skip
        arguments, absent = passed(("shares", "picks", "out"), given)
        width = out.columns // self.picks if out else 0
        by_row = {**absent, **self.picking, "WIDTH": width, "COLUMNS": COLUMNS}
        by_expert: dict[str, Pointer | Size] = {
            "picks": workspace("int32", picks), "lists": workspace("int32"),
            "counts": workspace("int32", counts), "rows": Size(self.x.symbol),
        }  # fmt: skip
        own: Constants = {"PICKS": self.picks, "COLUMNS": PICKS_AT_ONCE}
        return [
            self._of_many("experts.list_picks", arguments, by_row, row_grid(self.x.symbol), end),
            self._of_many(
                "experts.list_rows", by_expert, own, (Extent(times=self.experts), ONE, ONE), end
            ),
        ]

    def multiply(
        self, function: str, own: Constants, into: Mapping[str, Pointer], outputs: int,
        tiles: Tiles, more_bytes: int = 0,
    ) -> Call:  # fmt: skip
        """The launch of a product, whose programs make some of so many outputs."""
        pointers, matrix = matrix_of(self.weight)
        bias = self.operands.weight(self.product, "bias")
        arguments, absent = passed(
            (*MULTIPLY, *into, "rows"),
            {
                "x": self.x.pointer, **pointers, "bias": bias, "shares": self.shares.pointer,
                "lists": workspace("int32"), "counts": workspace("int32", self.places[0]), **into,
                "rows": Size(self.x.symbol),
            },
        )  # fmt: skip
        constants = {
            **absent, **matrix, **self.picking, **own, "DEPTH": self.depth,
            "MATRIX_BYTES": self.weight.row_stride or matrix_bytes(self.weight),
            "X_STRIDE": self._x_stride, "WITH_BIAS": bias is not None,
            "TILE_COLUMNS": self.tiling.columns,
        }  # fmt: skip
        choices = tuple(self._choices(function, constants, outputs, tiles))
        return Call(arguments, choices, self.list_bytes + more_bytes)

    @property
    def _x_stride(self) -> int:
        """Numbers from a row to the next; a pick has a row of its own in the second product."""
        of_picks = len(self.x.buffer.shape) > 2
        dense = not of_picks or self.x.stride == self.picks * self.depth
        _expect(self.product, dense, "multiplies rows whose picks do not lie side by side")
        return self.depth if of_picks else self.x.stride

    def _choices(
        self, function: str, constants: Constants, outputs: int, tiles: Tiles
    ) -> Iterator[Choice]:
        symbol = self.x.symbol
        # Rows of a step of which each expert gets as many as a tile of some rows has.
        more = FEW_ROWS * self.experts // self.picks
        for most, tile in zip((DIRECT_ROWS, more, 0), tiles, strict=True):
            listed = most != DIRECT_ROWS
            columns = Extent(times=-(-outputs // tile.outputs))
            yield Choice(
                function,
                {**constants, "LISTED": listed, **_sizes(tile)},
                (
                    Extent(size=symbol, per=tile.rows * TILES_IN_TURN) if listed
                    else Extent(size=symbol, times=self.picks),
                    columns,
                    Extent(times=self.experts) if listed else ONE,
                ),
                size=symbol if most else "", most=most,
                num_warps=tile.num_warps, num_stages=tile.num_stages,
            )  # fmt: skip

    def _of_many(
        self, function: str, arguments: Mapping[str, Pointer | Size], constants: Constants,
        grid: Grid, nbytes: int,
    ) -> Call:  # fmt: skip
        """A launch of steps of more than DIRECT_ROWS rows."""
        many = Choice(function, constants, grid)
        few = Choice(function, constants, NOWHERE, self.x.symbol, DIRECT_ROWS)
        return Call(arguments, (few, many), nbytes)


def _sizes(tile: Tile) -> Constants:
    return {"TILE_ROWS": tile.rows, "TILE_OUTPUTS": tile.outputs}


def _expect(i: Instruction, condition: bool, found: str) -> None:
    if not condition:
        raise CodegenError(
            f"{where(i)} {found}",
            hint=f"Known: scores {', '.join(SCORINGS)}; of groups {', '.join(GROUP_SCORES)}; "
            f"gates {', '.join((*ACTIVATIONS, CLAMPED))}.",
        )


CALLS: Mapping[str, Emit] = {
    "expert_gate": expert_gate,
    "expert_sum": expert_sum,
    "route": route,
}
