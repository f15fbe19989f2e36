"""Products as launches: what multiplies a matrix, and where its sums go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ingot.artifact.formats import stored_bytes
from ingot.artifact.launches import Constant, Extent, Grid, LaunchArgument
from ingot.artifact.plan import Buffer, Instruction
from ingot.errors import CodegenError
from ingot.targets.cuda.call import ONE, Call, Choice
from ingot.targets.cuda.levels import FLOATS
from ingot.targets.cuda.operands import Operands, Pointer, RowsOperand, Size, workspace
from ingot.targets.cuda.tiles import CLASSES, FEW_ROWS, Splits, Tile, Tiling, tiling_of
from ingot.targets.cuda.weights import fits, high_bits, layout_of
from ingot.targets.work import where

Constants = Mapping[str, Constant]
Given = Mapping[str, Pointer | Size | None]

MATRIX = ("w", "high", "multipliers", "zeros", "scales")
MULTIPLY = ("x", *MATRIX, "bias", "residual", "parts", "out", "rows")


@dataclass(frozen=True, slots=True)
class Epilogue:
    """Epilogue of a product: what is added to complete sums, their soft cap, their place."""

    out: RowsOperand
    residual: RowsOperand | None = None
    cap: float = 0.0

    @property
    def pointers(self) -> Given:
        return {"out": self.out.pointer, "residual": pointer_of(self.residual)}

    @property
    def constants(self) -> Constants:
        return {
            "RESIDUAL_STRIDE": self.residual.stride if self.residual else 0,
            "OUT_STRIDE": self.out.stride,
            "CAP": self.cap,
            "WITH_RESIDUAL": self.residual is not None,
        }


NOTHING: Constants = {"RESIDUAL_STRIDE": 0, "OUT_STRIDE": 0, "CAP": 0.0, "WITH_RESIDUAL": False}


@dataclass(frozen=True)
class Product:
    """The product of a linear. Raises CodegenError for operands that kernels do not take."""

    operands: Operands
    linear: Instruction

    @cached_property
    def x(self) -> RowsOperand:
        return self.operands.rows(self.linear, "x")

    @cached_property
    def weight(self) -> Buffer:
        return self.operands.buffer(self.linear, "weight")

    @cached_property
    def bias(self) -> Pointer | None:
        return self.operands.weight(self.linear, "bias")

    @cached_property
    def rows(self) -> Size:
        return Size(self.x.symbol)

    @property
    def outputs(self) -> int:
        return int(self.weight.shape[0])

    @property
    def depth(self) -> int:
        return int(self.weight.shape[1])

    @cached_property
    def tiling(self) -> Tiling:
        form, row_bits = self.weight.format, self.x.buffer.format.bits
        return tiling_of(self.outputs, self.depth, form, row_bits, self.operands.architecture)

    @property
    def splits(self) -> Splits:
        return self.tiling.splits

    def call(self, epilogue: Epilogue | None) -> Call:
        """The launch that makes parts, without an epilogue, or stores complete sums.

        With an epilogue, a step of few rows still makes parts where there are several splits.
        """
        check_operands(self.linear, self.x.buffer, self.weight)
        makes_parts = epilogue is None or self.splits.count > 1
        pointers, matrix = matrix_of(self.weight)
        given: Given = {
            "x": self.x.pointer,
            **pointers,
            **({"bias": self.bias, **epilogue.pointers} if epilogue else {}),
            "parts": workspace() if makes_parts else None,
            "rows": self.rows,
        }
        arguments, absent = passed(MULTIPLY, given)
        sizes = {"WIDTH": self.outputs, "DEPTH": self.depth, "X_STRIDE": self.x.stride}
        constants = {**absent, **matrix, **sizes}
        return Call(
            arguments,
            tuple(self._choices(constants, epilogue)),
            self._part_bytes(few_only=epilogue is not None) if makes_parts else 0,
        )

    def _choices(self, constants: Constants, epilogue: Epilogue | None) -> Iterator[Choice]:
        count, steps = self.splits.count, self.splits.steps
        for most, tile in zip(CLASSES, self.tiling.tiles, strict=True):
            together = not most or count == 1
            stores_parts = epilogue is None or not together
            own = epilogue.constants if epilogue and not stores_parts else NOTHING
            with_bias = self.bias is not None and not stores_parts
            yield Choice(
                "product.multiply",
                {
                    **constants, **own, "SPLITS": count, "STEPS": steps, "TOGETHER": together,
                    "STORES_PARTS": stores_parts, "WITH_BIAS": with_bias, "TILE_ROWS": tile.rows,
                    "TILE_OUTPUTS": tile.outputs, "TILE_COLUMNS": self.tiling.columns,
                },
                self._grid(tile, self.outputs, 1 if together else count),
                size=self.x.symbol if most else "", most=most,
                num_warps=tile.num_warps, num_stages=tile.num_stages,
            )  # fmt: skip

    def gated(self, out: RowsOperand, kind: str) -> Call:
        """The launch that stores activation(gate) * up, of the two halves of the product.

        A step of few rows makes parts where there are several splits.
        """
        check_operands(self.linear, self.x.buffer, self.weight)
        count = self.splits.count
        pointers, matrix = matrix_of(self.weight)
        given: Given = {
            "x": self.x.pointer, **pointers, "bias": self.bias, "out": out.pointer,
            "parts": workspace() if count > 1 else None, "rows": self.rows,
        }  # fmt: skip
        arguments, absent = passed(tuple(n for n in MULTIPLY if n != "residual"), given)
        constants: dict[str, Constant] = {
            **absent, **matrix, "HALF": out.columns, "DEPTH": self.depth, "X_STRIDE": self.x.stride,
            "OUT_STRIDE": out.stride, "SPLITS": count, "STEPS": self.splits.steps, "KIND": kind,
            "WITH_BIAS": self.bias is not None, "TILE_COLUMNS": self.tiling.columns,
        }  # fmt: skip
        few = [
            replace(c, constants={n: v for n, v in c.constants.items() if n not in arguments})
            for c in (self.call(None).choices[:-1] if count > 1 else ())
        ]
        return Call(
            arguments,
            (*few, *self._gated_choices(constants, CLASSES[len(few) :])),
            self._part_bytes(few_only=True) if few else 0,
        )

    def _gated_choices(self, constants: Constants, classes: Sequence[int]) -> Iterator[Choice]:
        for most, tile in zip(classes, self.tiling.gated[-len(classes) :], strict=True):
            own = {"TILE_ROWS": tile.rows, "TILE_OUTPUTS": tile.outputs}
            yield Choice(
                "product.multiply_gated", {**constants, **own},
                self._grid(tile, self.outputs // 2),
                size=self.x.symbol if most else "", most=most,
                num_warps=tile.num_warps, num_stages=tile.num_stages,
            )  # fmt: skip

    def _grid(self, tile: Tile, outputs: int, splits: int = 1) -> Grid:
        """Tiles of rows come first, so that those of one tile of weights run side by side."""
        rows = Extent(size=self.x.symbol, per=tile.rows)
        return rows, Extent(times=-(-outputs // tile.outputs)), Extent(times=splits)

    def _part_bytes(self, *, few_only: bool) -> int:
        bound = self.operands.plan.limits.bound(self.x.buffer.shape[0])
        few = min(bound, FEW_ROWS) * self.splits.count
        rows = few if few_only else max(few, bound)
        return stored_bytes("float32", rows * self.outputs)


def check_operands(product: Instruction, x: Buffer, weight: Buffer) -> None:
    """Raises CodegenError for formats that products do not take, or do not take together."""
    check_matrix(weight)
    if str(x.format) not in FLOATS or not (weight.format.is_scaled or weight.format == x.format):
        raise CodegenError(
            f"{where(product)} multiplies {x.format} with {weight.format}",
            hint="Products on CUDA take rows in the dtype of the weight, or, where the weight "
            "is in integers, in any float dtype.",
        )


def check_matrix(weight: Buffer) -> None:
    """Raises CodegenError for a format that no product takes."""
    columns = int(weight.shape[-1])
    if not fits(columns, weight.format):
        raise CodegenError(
            f"weight {weight.name} has {columns} columns in the format {weight.format}",
            hint="Products on CUDA take int4, int5, int6 and int8, float16 scales of whole rows or "
            "of blocks of 16 or of whole 32 columns, and multipliers in pairs; minimums, codes and "
            "wider multipliers as GGUF files have them.",
        )


def matrix_of(weight: Buffer) -> tuple[dict[str, Pointer], Constants]:
    """Pointers to the parts of a packed matrix, or of the first of a stack, and its constants.

    Raises CodegenError for a format that no product takes.
    """
    check_matrix(weight)
    rows, columns = map(int, weight.shape[-2:])
    form = weight.format
    layout = layout_of(rows, columns, form)
    pointers = {"w": _part(weight, 0, "int4" if form.bits < 8 else form.dtype)}
    if high_bits(form):
        pointers["high"] = _part(weight, layout.high, "int4")
    if form.has_multipliers:
        kept = "int16" if form.is_two_level else "int4"
        pointers["multipliers"] = _part(weight, layout.multipliers, kept)
    if form.zeros:
        of_pairs = "int4" if form.is_two_level else "int16"
        kept = of_pairs if form.has_multipliers else "int8"
        pointers["zeros"] = _part(weight, layout.zeros, kept)
    if form.is_scaled:
        pointers["scales"] = _part(weight, layout.scales, "float16")
    return pointers, {
        "ROW_BYTES": layout.row_bytes,
        "BITS": form.bits,
        "BLOCK": form.block,
        "GROUP": form.group,
        "WITH_ZEROS": form.zeros,
        "TWO_LEVEL": form.is_two_level,
        "MULTIPLIER": form.multiplier,
        "WITH_MINIMUMS": form.minimums,
        "WITH_CODES": form.codes,
    }


def passed(
    names: Sequence[str], given: Given
) -> tuple[dict[str, Pointer | Size], dict[str, Constant]]:
    """Arguments in the order of a kernel's, and a constant 0 for each that is absent."""
    found = {name: given.get(name) for name in names}
    arguments = {name: each for name, each in found.items() if each is not None}
    return arguments, {name: 0 for name, each in found.items() if each is None}


def pointer_of(rows: RowsOperand | None) -> Pointer | None:
    return None if rows is None else rows.pointer


def row_grid(symbol: str, width: int = 1, columns: int = 1) -> Grid:
    """A program for every so many columns of a row."""
    return Extent(size=symbol), Extent(times=-(-width // columns)), ONE


def power_of_two(count: int) -> int:
    """The least power of two that is no less than the count."""
    return 1 << (count - 1).bit_length()


def row_warps(columns: int) -> int:
    """Warps of a program that holds so many columns."""
    return max(1, min(8, columns // 256))


def _part(weight: Buffer, offset: int, dtype: str) -> Pointer:
    return Pointer(LaunchArgument(buffer=weight.name, offset=offset), dtype)
