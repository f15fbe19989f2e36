"""The launches of attention over pages, and over segments: how it is cut into tiles and chunks, and
its constants."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import gcd

from ingot.artifact.formats import DTYPE_BITS
from ingot.artifact.launches import MOST_KEYS, MOST_ROWS, Constant, Extent, LaunchArgument
from ingot.artifact.plan import Instruction, aligned
from ingot.targets.cuda.call import Call, Choice, Emit
from ingot.targets.cuda.head_parts import PagedCache, PagedState, expect, expect_head, width_of
from ingot.targets.cuda.levels import FLOATS
from ingot.targets.cuda.operands import Operands, Pointer, RowsOperand, workspace
from ingot.targets.work import Work

CHUNK = 256  # keys, as in kernels/attention.py
ROW_TILE = 16  # query heads of a program that takes one token
NARROWEST = 16  # columns of a product


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tiles of attention: the size of what a program holds.

    Keys and warps are the same for sequences of one row and of more, so that both add in one order.
    So is the kind of matrix instruction as long as there are fewer than 64 rows: from there on,
    Hopper and Blackwell have others.

    Attributes:
        rows: query heads of tokens, in steps of several rows a sequence.
        keys: that are multiplied at a time.
    """

    rows: int
    keys: int
    num_warps: int
    num_stages: int


def tiles_of(dtype: str, size: int, in_int8: bool) -> Tiles:
    """The tiles of queries in a dtype with heads of so many columns, over a cache in int8 or not.

    Integers become operands of products in registers; larger tiles than these would spill. So do
    float32 queries of more than 128 columns over int8. Their tiles are small, so more of them are
    under way.
    """
    row_bytes = DTYPE_BITS[dtype] // 8 * width_of(size)
    if dtype != "float32":
        if in_int8:
            return Tiles(16, 32, 4 if row_bytes <= 128 else 8, 5)
        return Tiles(32, 64, 4, 3) if row_bytes <= 256 else Tiles(16, 32, 4, 3)
    if in_int8:
        return Tiles(16, 16, 4 if row_bytes <= 256 else 8, 5)
    if row_bytes <= 512:
        return Tiles(16, 64, 4, 2) if row_bytes <= 256 else Tiles(16, 32, 4, 3)
    return Tiles(16, 16, 8, 3)


@dataclass(frozen=True)
class OverPages(ABC):
    """Attention of any kind: its operands, and the chunks that its keys are cut into.

    Raises:
        CodegenError: no kernel takes them.
    """

    operands: Operands
    i: Instruction

    def __post_init__(self) -> None:
        q, cache = self.q.buffer.dtype, self.cache.buffer.dtype
        expect(
            self.i,
            q in FLOATS and cache in (q, "int8"),
            f"q is {q} and the cache {cache}",
            f"{', '.join(FLOATS)} with a cache of the same dtype or in int8",
        )

    @property
    @abstractmethod
    def cache(self) -> PagedState: ...

    @property
    @abstractmethod
    def values(self) -> int:
        """Columns of a value."""

    @cached_property
    def q(self) -> RowsOperand:
        return self.operands.rows(self.i, "q")

    @cached_property
    def out(self) -> RowsOperand:
        return self.operands.rows(self.i, "out")

    @property
    def heads(self) -> int:
        return int(self.q.buffer.shape[1])

    @property
    def window(self) -> int:
        return int(self.i.attrs["window"])

    @property
    def all_chunks(self) -> int:
        """Chunks of the longest sequence."""
        return -(-self.operands.plan.limits.max_model_len // CHUNK)

    @property
    def chunks(self) -> int:
        """The most chunks that a row sees."""
        in_window = (self.window + CHUNK - 2) // CHUNK + 1
        return min(self.all_chunks, in_window) if self.window else self.all_chunks

    @property
    def extent(self) -> Extent:
        """Programs that take a chunk each."""
        is_bounded = self.chunks < self.all_chunks
        return Extent(times=self.chunks) if is_bounded else Extent(size=MOST_KEYS, per=CHUNK)

    @property
    def inputs(self) -> dict[str, Pointer]:
        tables = {
            name: Pointer(LaunchArgument(buffer=self.i.inputs[name]), "int32")
            for name in ("spans", "page_table")
        }
        return {"q": self.q.pointer, **self.cache.pointers, **tables}

    def partial_results(self) -> tuple[dict[str, Pointer], int]:
        """Memory of chunks' partial results (values, highest scores, sums), and its bytes."""
        rows = self.operands.plan.limits.max_num_seqs * self.heads * self.chunks
        highest = aligned(4 * rows * self.values)
        sums = highest + aligned(4 * rows)
        places = {"attended": 0, "highest": highest, "sums": sums}
        pointers = {name: workspace(offset=offset) for name, offset in places.items()}
        return pointers, sums + aligned(4 * rows)


@dataclass(frozen=True)
class AttentionCall(OverPages):
    """An attention to keys and values of heads."""

    @cached_property
    def cache(self) -> PagedCache:
        return PagedCache(self.operands, self.i)

    @property
    def values(self) -> int:
        return self.cache.size

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.heads // self.cache.kv_heads

    @property
    def tiles(self) -> Tiles:
        return tiles_of(self.q.buffer.dtype, self.cache.size, self.cache.is_scaled)

    @property
    def sizes(self) -> dict[str, Constant]:
        """Constants of all kernels."""
        return {
            **self.cache.absent,
            "HEADS": self.cache.kv_heads,
            "GROUP": self.group,
            "D": self.cache.size,
            "WIDTH": width_of(self.cache.size),
            "WINDOW": self.window,
            "CHUNKS": self.chunks,
        }

    @property
    def attending(self) -> dict[str, Constant]:
        """Constants of the kernels that read keys, but their rows."""
        return {
            **self.sizes,
            **self.cache.constants,
            "PAGES": self.operands.plan.limits.max_pages_per_seq,
            "SCALE": float(self.i.attrs["scale"]),
            "SOFTCAP": float(self.i.attrs["softcap"]),
            "KEYS": self.tiles.keys,
            "Q_STRIDE": self.q.stride,
        }

    @property
    def sinks(self) -> dict[str, Pointer]:
        """By the name of the kernels' argument; none where there are no sinks."""
        pointer = self.operands.weight(self.i, "sinks")
        if pointer is None:
            return {}
        expect(self.i, pointer.dtype == "float32", f"sinks are {pointer.dtype}", "float32 sinks")
        return {"sinks": pointer}


def paged_attention(operands: Operands, work: Work) -> tuple[Call, ...]:
    """Attention in two launches.

    The first takes the sequences of one row, with a program for every chunk of keys. The second
    merges those chunks, and takes the sequences of more rows, if there are some.
    """
    attention = AttentionCall(operands, work.member("paged_attention"))
    partial, nbytes = attention.partial_results()
    first = {**attention.inputs, **partial}
    second = {**first, "out": attention.out.pointer, **attention.sinks}
    choices = (merging(attention), by_tiles(attention))
    return Call(first, (by_chunks(attention),), nbytes), Call(second, choices, nbytes)


def by_chunks(attention: AttentionCall) -> Choice:
    """A program for every chunk of a sequence that has one row."""
    row_tiles = -(-attention.group // ROW_TILE)
    return Choice(
        "attention.attend_chunks",
        attention.attending | {"ROWS": ROW_TILE},
        (Extent(size="S"), Extent(times=attention.cache.kv_heads * row_tiles), attention.extent),
        num_warps=attention.tiles.num_warps,
        num_stages=attention.tiles.num_stages,
    )


def by_tiles(attention: AttentionCall) -> Choice:
    """A program for all chunks of some rows of a sequence, whatever their number."""
    rows = attention.tiles.rows
    common = gcd(rows, attention.group)
    tiles = Extent(size=MOST_ROWS, per=rows // common, times=attention.group // common)
    return Choice(
        "attention.attend_tiles",
        attention.attending | {"ROWS": rows, "OUT_STRIDE": attention.out.stride},
        (Extent(size="S"), Extent(times=attention.cache.kv_heads), tiles),
        num_warps=attention.tiles.num_warps,
        num_stages=attention.tiles.num_stages,
    )


def merging(attention: AttentionCall) -> Choice:
    """A program for every query head, in steps where no sequence has more than one row."""
    heads = (Extent(times=attention.cache.kv_heads), Extent(times=attention.group))
    return Choice(
        "attention.merge_chunks",
        attention.sizes | {"OUT_STRIDE": attention.out.stride},
        (Extent(size="S"), *heads),
        size=MOST_ROWS,
        most=1,
        num_warps=1,
    )


def segment_attention(operands: Operands, work: Work) -> tuple[Call, ...]:
    """Attention in one launch: a program for every KV head and some rows of a segment.

    Raises:
        CodegenError: no kernel takes its operands.
    """
    i = work.member("segment_attention")
    q, k, v, out = (operands.rows(i, name) for name in ("q", "k", "v", "out"))
    heads, size = map(int, q.buffer.shape[1:])
    kv_heads = int(k.buffer.shape[1])
    expect_head(i, size)
    expect(i, k.buffer.shape == v.buffer.shape, f"values of {v.buffer.shape}", "those of the keys")
    dtypes = {each.buffer.dtype for each in (q, k, v)}
    found = f"q, k and v in {', '.join(sorted(dtypes))}"
    expect(i, len(dtypes) == 1 and dtypes <= {*FLOATS}, found, f"one of {', '.join(FLOATS)}")
    group, (main, tail) = heads // kv_heads, parts_of(size)
    tiles = segment_tiles(q.buffer.dtype, size)
    constants: dict[str, Constant] = {
        **{f"{n.upper()}_STRIDE": r.stride for n, r in zip("qkv", (q, k, v), strict=True)},
        **{"OUT_STRIDE": out.stride, "GROUP": group, "D": size, "MAIN": main, "TAIL": tail},
        **{name: float(i.attrs[name.lower()]) for name in ("SCALE", "SOFTCAP")},
        **{"WINDOW": int(i.attrs["window"]), "CAUSAL": bool(i.attrs["causal"])},
        **{"ROWS": tiles.rows, "KEYS": tiles.keys},
    }
    spans = operands.rows(i, "spans")
    rows = {"q": q, "k": k, "v": v, "spans": spans, "out": out}
    pointers = {name: each.pointer for name, each in rows.items()}
    if "buckets" in i.inputs:
        given, sizes = distances_of(operands, i)
        pointers |= given
        constants |= sizes
    common = gcd(tiles.rows, group)
    row_tiles = Extent(size=MOST_ROWS, per=tiles.rows // common, times=group // common)
    choice = Choice(
        "segments.attend_segments",
        constants,
        (Extent(size=spans.symbol), Extent(times=kv_heads), row_tiles),
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )
    return (Call(pointers, (choice,)),)


def distances_of(
    operands: Operands, i: Instruction
) -> tuple[dict[str, Pointer], dict[str, Constant]]:
    """What is added to products by distance: where it lies, and the constants of that.

    Raises:
        CodegenError: numbers that are not float32, or not of the same buckets.
    """
    rows = {name: operands.rows(i, name) for name in ("q_bias", "k_bias") if name in i.inputs}
    weights = {name: operands.weight(i, name) for name in ("buckets", "bias")}
    pointers = {name: pointer for name, pointer in weights.items() if pointer}
    pointers |= {name: each.pointer for name, each in rows.items()}
    dtypes = sorted({pointer.dtype for pointer in pointers.values()})
    expect(i, dtypes == ["float32"], f"biases in {', '.join(dtypes)}", "those in float32")
    given = [operands.buffer(i, name) for name in pointers if name != "buckets"]
    counts = sorted({int(each.shape[-1]) for each in given})
    expect(i, len(counts) == 1, f"biases for {counts} buckets", "the same buckets for all")
    sizes = {f"{name.upper()}_STRIDE": each.stride for name, each in rows.items()}
    reach = int(operands.buffer(i, "buckets").shape[0]) // 2
    return pointers, {**sizes, "REACH": reach, "BUCKETS": counts[0]}


def parts_of(size: int) -> tuple[int, int]:
    """Columns of the two parts of a head: powers of two that products can sum over, the second
    smaller than the first or 0."""
    whole = width_of(size)
    rest = size - whole // 2
    tail = max(NARROWEST, 1 << (rest - 1).bit_length()) if rest > 0 else 0
    return (whole // 2, tail) if NARROWEST <= tail < whole // 2 else (whole, 0)


def segment_tiles(dtype: str, size: int) -> Tiles:
    """The tiles of rows in a dtype with heads of so many columns.

    There is one way to a result, so that tiles may have the rows that matrix units are fastest
    with. Larger ones would not fit the shared memory of all architectures.
    """
    row_bytes = DTYPE_BITS[dtype] // 8 * sum(parts_of(size))
    if dtype == "float32":
        return Tiles(16, 32, 4, 2) if row_bytes <= 384 else Tiles(16, 16, 8, 2)
    if row_bytes <= 192:
        return Tiles(64, 64, 4, 3)
    return Tiles(64, 32, 4, 3) if row_bytes <= 256 else Tiles(64, 32, 8, 2)


CALLS: Mapping[str, Emit] = {"segment_attention": segment_attention}
