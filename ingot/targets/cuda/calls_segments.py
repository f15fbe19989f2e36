"""The launch of attention over segments: how it is cut into tiles, and its constants."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd

from ingot.artifact.formats import DTYPE_BITS
from ingot.artifact.launches import MOST_ROWS, Extent
from ingot.targets.cuda.call import Call, Choice, Emit
from ingot.targets.cuda.calls_attention import Tiles
from ingot.targets.cuda.head_parts import expect, expect_head, width_of
from ingot.targets.cuda.levels import FLOATS
from ingot.targets.cuda.operands import Operands
from ingot.targets.work import Work

NARROWEST = 16  # columns of a product


def segment_attention(operands: Operands, work: Work) -> tuple[Call, ...]:
    """Attention in one launch: a program for every KV head and some rows of a segment.

    Raises:
        CodegenError: no kernel takes its operands.
    """
    i = work.member("segment_attention")
    q, k, v, out = (operands.rows(i, name) for name in ("q", "k", "v", "out"))
    _, heads, size = map(int, (1, *q.buffer.shape[1:]))
    kv_heads = int(k.buffer.shape[1])
    expect_head(i, size)
    expect(i, k.buffer.shape == v.buffer.shape, f"values of {v.buffer.shape}", "those of the keys")
    dtypes = {each.buffer.dtype for each in (q, k, v)}
    found = f"q, k and v in {', '.join(sorted(dtypes))}"
    expect(i, len(dtypes) == 1 and dtypes <= {*FLOATS}, found, f"one of {', '.join(FLOATS)}")
    group, tiles, (main, tail) = heads // kv_heads, tiles_of(q.buffer.dtype, size), parts_of(size)
    constants = {
        **{f"{n.upper()}_STRIDE": r.stride for n, r in zip("qkv", (q, k, v), strict=True)},
        **{"OUT_STRIDE": out.stride, "GROUP": group, "D": size, "MAIN": main, "TAIL": tail},
        **{name: float(i.attrs[name.lower()]) for name in ("SCALE", "SOFTCAP")},
        **{"WINDOW": int(i.attrs["window"]), "CAUSAL": bool(i.attrs["causal"])},
        **{"ROWS": tiles.rows, "KEYS": tiles.keys},
    }
    spans = operands.rows(i, "spans")
    pointers = {"q": q, "k": k, "v": v, "spans": spans, "out": out}
    common = gcd(tiles.rows, group)
    row_tiles = Extent(size=MOST_ROWS, per=tiles.rows // common, times=group // common)
    choice = Choice(
        "segments.attend_segments",
        constants,
        (Extent(size=spans.symbol), Extent(times=kv_heads), row_tiles),
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )
    return (Call({name: each.pointer for name, each in pointers.items()}, (choice,)),)


def parts_of(size: int) -> tuple[int, int]:
    """Columns of the two parts of a head: powers of two that products can sum over, the second
    smaller than the first or 0."""
    whole = width_of(size)
    rest = size - whole // 2
    tail = max(NARROWEST, 1 << (rest - 1).bit_length()) if rest > 0 else 0
    return (whole // 2, tail) if NARROWEST <= tail < whole // 2 else (whole, 0)


def tiles_of(dtype: str, size: int) -> Tiles:
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
