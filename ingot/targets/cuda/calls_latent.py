"""The launches of latent attention: products of heads, rows into the cache, and attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import gcd

from ingot.artifact.architectures import Architecture
from ingot.artifact.formats import DTYPE_BITS
from ingot.artifact.launches import MOST_ROWS, Constant, Extent
from ingot.artifact.plan import Instruction
from ingot.targets.cuda.call import ONE, Call, Choice, Emit
from ingot.targets.cuda.calls_attention import ROW_TILE, OverPages, Tiles
from ingot.targets.cuda.head_parts import LatentCache, expect, width_of
from ingot.targets.cuda.levels import FLOATS, LARGEST_VALUES
from ingot.targets.cuda.operands import Operands, Pointer, Size
from ingot.targets.cuda.products import MATRIX, matrix_of, power_of_two
from ingot.targets.cuda.tiles import CLASSES, tiling_of
from ingot.targets.work import Work

LARGE = 128 << 10  # bytes of shared memory that take 32 keys in integers, and their numbers


def tiles_of(dtype: str, in_int8: bool, architecture: Architecture) -> Tiles:
    """The tiles of queries in a dtype, over rows in int8 or not: see `calls_attention.tiles_of`."""
    if DTYPE_BITS[dtype] == 32 or (in_int8 and architecture.most_shared_bytes < LARGE):
        return Tiles(ROW_TILE, 16, 8, 2)
    return Tiles(ROW_TILE, 32, 8, 2 if in_int8 else 3)


def head_linear(operands: Operands, work: Work) -> list[Call]:
    """Heads of rows, each multiplied with a matrix of its own."""
    i = work.member("head_linear")
    x, out, weight = operands.rows(i, "x"), operands.rows(i, "out"), operands.buffer(i, "weight")
    width, depth = map(int, weight.shape)
    heads, form = x.columns // depth, weight.format
    dtype = x.buffer.format
    same = form == dtype and str(dtype) in FLOATS
    expect(i, same, f"{dtype} times {form}", "heads and matrices in one dtype")
    pointers, matrix = matrix_of(weight)
    given: dict[str, Pointer | Size] = {
        "x": x.pointer, **pointers, "out": out.pointer, "rows": Size(x.symbol),
    }  # fmt: skip
    outputs = width // heads
    # As for two halves: the sums are short, and larger tiles would spill.
    tiling = tiling_of(outputs, depth, form, dtype.bits, operands.architecture)
    constants: dict[str, Constant] = {
        **dict.fromkeys(MATRIX[1:], 0), **matrix, "WIDTH": width, "OUTPUTS": outputs,
        "DEPTH": depth, "X_STRIDE": x.stride, "OUT_STRIDE": out.stride,
        "TILE_COLUMNS": tiling.columns,
    }  # fmt: skip
    choices = [
        Choice(
            "head_product.multiply_heads",
            {**constants, "TILE_ROWS": tile.rows, "TILE_OUTPUTS": tile.outputs},
            (
                Extent(size=x.symbol, per=tile.rows),
                Extent(times=-(-outputs // tile.outputs)),
                Extent(times=heads),
            ),
            size=x.symbol if most else "", most=most,
            num_warps=tile.num_warps, num_stages=tile.num_stages,
        )
        for most, tile in zip(CLASSES, tiling.gated, strict=True)
    ]  # fmt: skip
    return [Call(given, tuple(choices))]


def keep_latents(operands: Operands, i: Instruction) -> tuple[Call, ...]:
    """Rows that are keys and values, into the cache."""
    cache, k = LatentCache(operands, i), operands.rows(i, "k")
    constants: Mapping[str, Constant] = {
        **cache.constants,
        "WIDTH": width_of(cache.block),
        "K_STRIDE": k.stride,
    }
    given = {
        "k": k.pointer,
        "slots": operands.rows(i, "slots").pointer,
        **cache.pointers,
    }
    grid = Extent(size="N"), Extent(times=cache.size // cache.block), ONE
    return (Call(given, (Choice("latent.keep_row", constants, grid, num_warps=1),)),)


@dataclass(frozen=True)
class Latents(OverPages):
    """An attention to rows that are keys and, in their first columns, values."""

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = 0 < self.values <= LARGEST_VALUES and self.values < self.cache.size
        most = f"at most {LARGEST_VALUES} values, and columns beside them"
        expect(self.i, fits, f"{self.values} values of a row", most)
        whole = self.values % self.cache.block == 0 or not self.cache.is_scaled
        expect(self.i, whole, "a scale of values and other columns", "one for either")
        expect(self.i, "sinks" not in self.i.inputs, "sinks", "latent rows without them")

    @cached_property
    def cache(self) -> LatentCache:
        return LatentCache(self.operands, self.i)

    @property
    def values(self) -> int:
        return int(self.i.attrs["value_size"])

    @property
    def tiles(self) -> Tiles:
        architecture = self.operands.architecture
        return tiles_of(self.q.buffer.dtype, self.cache.is_scaled, architecture)

    @property
    def sizes(self) -> dict[str, Constant]:
        """Constants of all kernels."""
        return {
            **self.cache.absent,
            "HEADS": self.heads,
            "VALUES": self.values,
            "WIDTH": width_of(self.values),
            "WINDOW": self.window,
            "CHUNKS": self.chunks,
        }

    @property
    def attending(self) -> dict[str, Constant]:
        """Constants of the kernels that read rows of the cache."""
        return {
            **self.sizes,
            **self.cache.constants,
            "REST": width_of(self.cache.size - self.values),
            "SCALES": power_of_two(self.cache.size // self.cache.block),
            "PAGES": self.operands.plan.limits.max_pages_per_seq,
            "SCALE": float(self.i.attrs["scale"]),
            "SOFTCAP": float(self.i.attrs["softcap"]),
            "ROWS": self.tiles.rows,
            "KEYS": self.tiles.keys,
            "Q_STRIDE": self.q.stride,
        }

    def choice(self, function: str, **own: Constant) -> Choice:
        """A kernel that reads rows of the cache, over the chunks of ROWS heads or the tiles."""
        return Choice(
            f"latent.{function}",
            self.attending | own,
            self._tiles if own else self._chunks,
            num_warps=self.tiles.num_warps,
            num_stages=self.tiles.num_stages,
        )

    @property
    def _chunks(self) -> tuple[Extent, Extent, Extent]:
        return Extent(size="S"), Extent(times=-(-self.heads // self.tiles.rows)), self.extent

    @property
    def _tiles(self) -> tuple[Extent, Extent, Extent]:
        rows = self.tiles.rows
        common = gcd(rows, self.heads)
        tiles = Extent(size=MOST_ROWS, per=rows // common, times=self.heads // common)
        return Extent(size="S"), ONE, tiles


def latent_attention(operands: Operands, work: Work) -> tuple[Call, ...]:
    """Latent attention in two launches, as `calls_attention.paged_attention` has them."""
    latents = Latents(operands, work.member("paged_attention"))
    partial, nbytes = latents.partial_results()
    first = {**latents.inputs, **partial}
    out = {"OUT_STRIDE": latents.out.stride}
    merging = Choice(
        "latent.merge_chunks",
        latents.sizes | out,
        (Extent(size="S"), Extent(times=latents.heads), ONE),
        size=MOST_ROWS,
        most=1,
        num_warps=1,
    )
    choices = (merging, latents.choice("attend_tiles", **out))
    second = Call({**first, "out": latents.out.pointer}, choices, nbytes)
    return Call(first, (latents.choice("attend_chunks"),), nbytes), second


CALLS: Mapping[str, Emit] = {"head_linear": head_linear}
