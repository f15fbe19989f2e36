"""The launches of queries, keys and values on their way to attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from ingot.artifact.launches import Constant, Extent
from ingot.artifact.plan import Instruction
from ingot.targets.cuda.call import ONE, Call, Choice, Emit
from ingot.targets.cuda.calls_attention import paged_attention
from ingot.targets.cuda.calls_latent import keep_latents, latent_attention
from ingot.targets.cuda.calls_products import product_parts
from ingot.targets.cuda.head_parts import PagedCache, expect, expect_head, width_of
from ingot.targets.cuda.operands import Operands, Pointer, Size
from ingot.targets.cuda.tiles import FEW_ROWS
from ingot.targets.turns import Turn, turns_of
from ingot.targets.work import Work

Constants = Mapping[str, Constant]


@dataclass(frozen=True)
class Turned:
    """Queries and keys that are turned, values, and where all of them go."""

    operands: Operands
    work: Work

    @cached_property
    def turns(self) -> tuple[Turn, Turn]:
        """Turns of queries and of keys."""
        return turns_of(self.work)

    @cached_property
    def write(self) -> Instruction:
        return self.work.member("kv_write")

    @cached_property
    def cache(self) -> PagedCache:
        return PagedCache(self.operands, self.write)

    @property
    def heads(self) -> int:
        return int(self.operands.buffer(self.turns[0].rope, "out").shape[1])

    @property
    def arguments(self) -> dict[str, Pointer]:
        """From the weights of the norms on, in the order of the kernels."""
        rope = self.turns[0].rope
        return {
            **self._norms,
            "table": self.operands.rows(rope, "table").pointer,
            "slots": self.operands.rows(self.write, "slots").pointer,
            "out": self.operands.rows(rope, "out").pointer,
            **self.cache.pointers,
        }

    @property
    def _norms(self) -> dict[str, Pointer]:
        found = {}
        for name, turn in zip(("q_norm", "k_norm"), self.turns, strict=True):
            pointer = self.operands.weight(turn.norm, "weight") if turn.norm else None
            if turn.norm and pointer:
                expect_float32(turn.norm, "the weight of the norm", pointer)
                found[name] = pointer
        return found

    @property
    def constants(self) -> dict[str, Constant]:
        rope, norm = self.turns[0].rope, self.turns[0].norm
        absent = {} if norm else {"q_norm": 0, "k_norm": 0}
        return {
            "HEADS": self.heads,
            "KV_HEADS": self.cache.kv_heads,
            **rotation(self.operands, rope),
            **absent,
            "NORMED": norm is not None,
            "EPS": float(norm.attrs["eps"]) if norm else 0.0,
            "OFFSET": float(norm.attrs["offset"]) if norm else 0.0,
            **self.cache.constants,
            "OUT_STRIDE": self.operands.rows(rope, "out").stride,
        }

    @property
    def grid(self) -> tuple[Extent, Extent, Extent]:
        return by_heads(self.heads + 2 * self.cache.kv_heads)


def linear_rope_kv_write(operands: Operands, work: Work) -> tuple[Call, ...]:
    """A product of which heads are made, and what is done with them."""
    linear, turned = work.member("linear"), Turned(operands, work)
    parts = product_parts(operands, linear)
    bias = operands.weight(linear, "bias")
    if bias:
        expect_float32(linear, "the bias", bias)
    given: dict[str, Pointer | Size] = {"parts": parts.pointer}
    given |= {"bias": bias} if bias else {}
    constants = turned.constants | {"WITH_BIAS": bias is not None} | ({} if bias else {"bias": 0})
    few = Choice(
        "heads.turn_parts",
        constants | {"PARTS": parts.few},
        turned.grid,
        size="N",
        most=FEW_ROWS,
        num_warps=1,
    )
    many = replace(few, constants=constants | {"PARTS": parts.many}, size="", most=0)
    choices = (few, many) if parts.few != parts.many else (many,)
    given |= {**turned.arguments, "rows": Size("N")}
    return parts.call, Call(given, choices, parts.call.workspace_bytes)


def rope_kv_write(operands: Operands, work: Work) -> tuple[Call, ...]:
    """Rows of queries, keys and values: norms, rotation and the write into the cache."""
    turned = Turned(operands, work)
    names = (*(turn.source for turn in turned.turns), turned.write.inputs["v"])
    rows = {n: operands.rows_of(operands.plan.buffer(b)) for n, b in zip("qkv", names, strict=True)}
    strides = {f"{name.upper()}_STRIDE": each.stride for name, each in rows.items()}
    given = {name: each.pointer for name, each in rows.items()} | turned.arguments
    choice = Choice("heads.turn_rows", turned.constants | strides, turned.grid, num_warps=1)
    return (Call(given, (choice,)),)


def rope(operands: Operands, work: Work) -> tuple[Call, ...]:
    """Rows of heads, turned."""
    i = work.member("rope")
    x, table, out = (operands.rows(i, name) for name in ("x", "table", "out"))
    constants = rotation(operands, i) | {"X_STRIDE": x.stride, "OUT_STRIDE": out.stride}
    choice = Choice("heads.turn", constants, by_heads(int(x.buffer.shape[1])), num_warps=1)
    return (Call({"x": x.pointer, "table": table.pointer, "out": out.pointer}, (choice,)),)


def kv_write(operands: Operands, work: Work) -> tuple[Call, ...]:
    """Rows of keys and values, into the cache."""
    i = work.member("kv_write")
    if "v" not in i.inputs:
        return keep_latents(operands, i)
    cache = PagedCache(operands, i)
    k, v, slots = (operands.rows(i, name) for name in ("k", "v", "slots"))
    constants: Constants = {
        "KV_HEADS": cache.kv_heads,
        "D": cache.size,
        "WIDTH": width_of(cache.size),
        **cache.constants,
        "K_STRIDE": k.stride,
        "V_STRIDE": v.stride,
    }
    given = {"k": k.pointer, "v": v.pointer, "slots": slots.pointer, **cache.pointers}
    choice = Choice("heads.keep_rows", constants, by_heads(cache.kv_heads), num_warps=1)
    return (Call(given, (choice,)),)


def attention(operands: Operands, work: Work) -> tuple[Call, ...]:
    """Attention over keys and values, or over rows that are both."""
    i = work.member("paged_attention")
    emit = paged_attention if "v_cache" in i.inputs else latent_attention
    return emit(operands, work)


def rope_table(operands: Operands, work: Work) -> tuple[Call, ...]:
    """Cosines and sines of the step's positions."""
    i = work.member("rope_table")
    positions, out = operands.rows(i, "positions"), operands.rows(i, "out")
    frequencies = operands.weight(i, "inv_freq")
    assert frequencies is not None, "it has no other source of angles"
    expect_float32(i, "inv_freq", frequencies)
    pairs = out.columns // 2
    constants: Constants = {
        "PAIRS": pairs,
        "WIDTH": width_of(pairs),
        "SCALE": float(i.attrs["scale"]),
        "OUT_STRIDE": out.stride,
        "TEMPERATURE": float(i.attrs["temperature"]),
        "LENGTH": int(i.attrs["length"]),
    }
    given = {"positions": positions.pointer, "frequencies": frequencies, "out": out.pointer}
    choice = Choice("rotary.fill_table", constants, (Extent(size="N"), ONE, ONE), num_warps=1)
    return (Call(given, (choice,)),)


def rotation(operands: Operands, i: Instruction) -> dict[str, Constant]:
    """Constants of a rope."""
    size, table = int(operands.buffer(i, "x").shape[2]), operands.rows(i, "table")
    expect_head(i, size)
    return {
        "D": size,
        "WIDTH": width_of(size),
        "PAIRS": table.columns // 2,
        "INTERLEAVED": bool(i.attrs["interleaved"]),
        "TABLE_STRIDE": table.stride,
    }


def by_heads(count: int) -> tuple[Extent, Extent, Extent]:
    """A program for every head of every row."""
    return Extent(size="N"), Extent(times=count), ONE


def expect_float32(i: Instruction, what: str, pointer: Pointer) -> None:
    expect(i, pointer.dtype == "float32", f"{what} is {pointer.dtype}", "it in float32")


CALLS: Mapping[str, Emit] = {
    "kv_write": kv_write,
    "linear_rope_kv_write": linear_rope_kv_write,
    "paged_attention": attention,
    "rope": rope,
    "rope_kv_write": rope_kv_write,
    "rope_table": rope_table,
}
