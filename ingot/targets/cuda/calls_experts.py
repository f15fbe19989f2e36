"""The launches of mixtures of experts: their routers, and their two products, whose rows have each
picked some of the matrices of a stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ingot.artifact.formats import stored_bytes
from ingot.artifact.launches import Constant, Extent, Grid
from ingot.artifact.plan import Buffer, Instruction, aligned
from ingot.errors import CodegenError
from ingot.targets.cuda.call import ONE, Call, Choice, Emit
from ingot.targets.cuda.calls_rows import ACTIVATIONS
from ingot.targets.cuda.operands import Operands, Pointer, RowsOperand, Size, workspace
from ingot.targets.cuda.products import (
    MATRIX,
    Constants,
    Given,
    check_operands,
    matrix_of,
    passed,
    power_of_two,
    row_grid,
    row_warps,
)
from ingot.targets.cuda.tiles import FEW_ROWS, Splits, Tile, Tiles, Tiling, tiling_of
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
MULTIPLY = ("x", *MATRIX, "shares", "lists", "counts")
FINISH = ("parts", "bias", "shares", "out", "rows")


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
    kind, stack, out = str(i.attrs["kind"]), ExpertStack(operands, i), operands.rows(i, "out")
    _expect(i, kind in (*ACTIVATIONS, CLAMPED), f"has the gate {kind!r}")
    _expect(i, stack.outputs % 2 == 0, f"has matrices of {stack.outputs} rows, without halves")
    own: Constants = {
        "HALF": stack.outputs // 2, "KIND": kind, "LIMIT": float(i.attrs["limit"]),
        "PLAIN": bool(i.attrs["plain"]),
    }  # fmt: skip
    together = [*stack.lists(out), stack.gated(own, out)]
    return together if stack.splits.count == 1 else [*stack.gated_in_parts(own, out), *together]


def expert_sum(operands: Operands, work: Work) -> list[Call]:
    """The second product of experts, and the sum of what they make of a row."""
    i = work.member("expert_sum")
    stack, out = ExpertStack(operands, i), operands.rows(i, "out")
    return [*stack.lists(), *stack.added(out)]


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


@dataclass(frozen=True)
class ExpertStack:
    """The matrices of experts that rows are multiplied with, and the picks of these rows.

    The workspace has the picks of each expert, their counts, the experts of each row, and then
    what the products store. Raises CodegenError for operands that kernels do not take.
    """

    operands: Operands
    product: Instruction

    def __post_init__(self) -> None:
        check_operands(self.product, self.x.buffer, self.weight)

    @cached_property
    def x(self) -> RowsOperand:
        return self.operands.rows(self.product, "x")

    @cached_property
    def shares(self) -> RowsOperand:
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
        """Tiling of a matrix."""
        form, row_bits = self.weight.format, self.x.buffer.format.bits
        return tiling_of(
            self.outputs, self.depth, form, row_bits, self.operands.architecture, self.picks
        )

    @property
    def splits(self) -> Splits:
        return self.tiling.splits

    @cached_property
    def bias(self) -> Pointer | None:
        return self.operands.weight(self.product, "bias")

    @property
    def picking(self) -> Constants:
        """Constants that tell the picks of a row from its shares."""
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
        """Offsets in the workspace: of the counts, the experts of each row, and what follows."""
        counts = aligned(stored_bytes("int32", self.experts * self.most_rows))
        picks = counts + aligned(stored_bytes("int32", self.experts))
        return counts, picks, picks + aligned(stored_bytes("int32", self.most_rows * self.picks))

    def lists(self, out: RowsOperand | None = None) -> list[Call]:
        """Calls that fill the lists in a step of many rows, and `out` where it has no pick."""
        counts, picks, _ = self.places
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
            self._of_many("experts.list_picks", arguments, by_row, row_grid(self.x.symbol)),
            self._of_many(
                "experts.list_rows", by_expert, own, (Extent(times=self.experts), ONE, ONE)
            ),
        ]

    def gated(self, own: Constants, out: RowsOperand) -> Call:
        """The launch that stores the gates of products, in a step of few rows only where their
        sums have one split."""
        half, tiles = self.outputs // 2, self.tiling.gated
        listed = self._listed(half, tiles)
        direct = (
            self._direct(half, tiles[0]) if self.splits.count == 1 else self._nowhere(listed[0])
        )
        own = {**own, "WITH_BIAS": self.bias is not None}
        given = {"bias": self.bias, "out": out.pointer}
        return self._multiply("experts.multiply_gated", own, given, [direct, *listed])

    def gated_in_parts(self, own: Constants, out: RowsOperand) -> list[Call]:
        """The launches that make the parts of a step of few rows, and their gates."""
        sharing: Constants = {"WIDTH": self.outputs, "SHARING": self.picks}
        direct = self._direct(self.outputs, self.tiling.tiles[0], self.splits.count)
        multiply = self._multiply(
            "experts.multiply", sharing, {"parts": self._parts}, [direct],
            self._part_bytes(few_only=True),
        )  # fmt: skip
        width = self.outputs // 2
        grid = Extent(size=self.x.symbol, times=self.picks), Extent(times=-(-width // COLUMNS)), ONE
        gates = self._finish("experts.gate_picks", own, out, grid, multiply.workspace_bytes)
        return [multiply, replace(gates, choices=gates.choices[:1])]

    def added(self, out: RowsOperand) -> list[Call]:
        """The launches that multiply, and add what experts make of a row."""
        width: Constants = {"WIDTH": self.outputs}
        few, _, many = self.tiling.tiles
        # Numbers of picks take registers, too, so tiles in between are as those of two halves.
        tiles = few, self.tiling.gated[1], many
        direct = self._direct(self.outputs, few, self.splits.count)
        multiply = self._multiply(
            "experts.multiply", {**width, "SHARING": 1}, {"parts": self._parts},
            [direct, *self._listed(self.outputs, tiles)], self._part_bytes(few_only=False),
        )  # fmt: skip
        own = {**width, "OUT_STRIDE": out.stride}
        grid = row_grid(out.symbol, self.outputs, COLUMNS)
        return [
            multiply,
            self._finish("experts.add_picks", own, out, grid, multiply.workspace_bytes),
        ]

    @property
    def _parts(self) -> Pointer:
        """The sums of picks, or in a step of few rows those of their splits: float32."""
        return workspace(offset=self.places[-1])

    def _part_bytes(self, *, few_only: bool) -> int:
        few = min(self.most_rows, DIRECT_ROWS) * self.splits.count
        rows = few if few_only else max(few, self.most_rows)
        return stored_bytes("float32", rows * self.picks * self.outputs)

    def _multiply(
        self, function: str, own: Constants, given: Given, choices: Sequence[Choice],
        more_bytes: int = 0,
    ) -> Call:  # fmt: skip
        """The launch of a product, by a function that takes what is given."""
        pointers, matrix = matrix_of(self.weight)
        arguments, absent = passed(
            (*MULTIPLY, *given, "rows"),
            {
                "x": self.x.pointer, **pointers, "shares": self.shares.pointer,
                "lists": workspace("int32"), "counts": workspace("int32", self.places[0]), **given,
                "rows": Size(self.x.symbol),
            },
        )  # fmt: skip
        constants = {
            **absent, **matrix, **self.picking, **own, "DEPTH": self.depth,
            "MATRIX_BYTES": self.weight.row_stride or matrix_bytes(self.weight),
            "X_STRIDE": self._x_stride, "SPLITS": self.splits.count, "STEPS": self.splits.steps,
            "TILE_COLUMNS": self.tiling.columns,
        }  # fmt: skip
        complete = tuple(
            replace(c, function=function, constants={**constants, **c.constants}) for c in choices
        )
        return Call(arguments, complete, self.places[-1] + more_bytes)

    def _finish(
        self, function: str, own: Constants, out: RowsOperand, grid: Grid, nbytes: int
    ) -> Call:
        """The launch of a second stage: for the parts of a step of few rows, and for sums."""
        arguments, absent = passed(
            FINISH,
            {
                "parts": self._parts, "bias": self.bias, "shares": self.shares.pointer,
                "out": out.pointer, "rows": Size(self.x.symbol),
            },
        )  # fmt: skip
        constants = {
            **absent, **self.picking, **own, "WITH_BIAS": self.bias is not None, "COLUMNS": COLUMNS,
        }  # fmt: skip
        parts = {**constants, "PARTS": self.splits.count}
        few = Choice(function, parts, grid, self.x.symbol, DIRECT_ROWS)
        return Call(arguments, (few, Choice(function, {**constants, "PARTS": 1}, grid)), nbytes)

    @property
    def _x_stride(self) -> int:
        """Numbers from a row to the next; a pick has a row of its own in the second product."""
        of_picks = len(self.x.buffer.shape) > 2
        dense = not of_picks or self.x.stride == self.picks * self.depth
        if not dense:
            raise CodegenError(
                f"{where(self.product)} multiplies rows whose picks do not lie side by side",
                hint="Products of experts on CUDA take the rows of a pick one after the other.",
            )
        return self.depth if of_picks else self.x.stride

    def _direct(self, outputs: int, tile: Tile, splits: int = 1) -> Choice:
        """For steps whose picks have programs of their own for so many outputs and splits."""
        grid = (
            Extent(size=self.x.symbol, times=self.picks),
            Extent(times=-(-outputs // tile.outputs)),
            Extent(times=splits),
        )
        return _choice(tile, grid, self.x.symbol, DIRECT_ROWS, listed=False)

    def _listed(self, outputs: int, tiles: Tiles) -> list[Choice]:
        """For steps of more rows, whose experts have programs for so many outputs."""
        # Rows of a step of which each expert gets as many as a tile of some rows has.
        more = FEW_ROWS * self.experts // self.picks
        choices = []
        for (size, most), tile in zip(((self.x.symbol, more), ("", 0)), tiles[1:], strict=True):
            grid = (
                Extent(size=self.x.symbol, per=tile.rows * TILES_IN_TURN),
                Extent(times=-(-outputs // tile.outputs)),
                Extent(times=self.experts),
            )
            choices.append(_choice(tile, grid, size, most, listed=True))
        return choices

    def _of_many(
        self, function: str, arguments: Mapping[str, Pointer | Size], constants: Constants,
        grid: Grid,
    ) -> Call:  # fmt: skip
        """A launch of steps of more than DIRECT_ROWS rows."""
        many = Choice(function, constants, grid)
        return Call(arguments, (self._nowhere(many), many), self.places[-1])

    def _nowhere(self, choice: Choice) -> Choice:
        """Launches nothing in steps of few rows."""
        return replace(choice, grid=NOWHERE, size=self.x.symbol, most=DIRECT_ROWS)


def _choice(tile: Tile, grid: Grid, size: str, most: int, *, listed: bool) -> Choice:
    """A choice of a product, without what all of them have."""
    own: Constants = {"LISTED": listed, "TILE_ROWS": tile.rows, "TILE_OUTPUTS": tile.outputs}
    return Choice("", own, grid, size, most, tile.num_warps, tile.num_stages)
