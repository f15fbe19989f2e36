"""The plan: pure data between the front end and the code generators.

A plan lists the buffers of one step, the instructions that run over them in order, and where
each temporary lies in the arena. It is written as JSON and read without torch.

Shapes are over the symbols N (tokens of the step), S (sequences), R (rows that need logits) and
P (pages of the longest sequence); a dimension is an int, one of those letters, or "S+1".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Dim = int | str
DType = Literal["float32", "bfloat16", "float16", "int32", "int8", "int4"]
Kind = Literal["weight", "arena", "view", "cache", "state", "input", "output"]
Attr = bool | int | float | str

# int4 is stored as its layout says, two values a byte.
DTYPE_BYTES: Mapping[str, int] = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "int32": 4,
    "int8": 1,
}


def stored_bytes(dtype: str, count: int) -> int:
    """Bytes of so many values, packed densely."""
    return -(-count // 2) if dtype == "int4" else count * DTYPE_BYTES[dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The largest step and sequence that an artifact was compiled for.

    Bounds of the shape symbols: N <= max_num_batched_tokens, S <= max_num_seqs,
    R <= max_logit_rows, P = ceil(max_model_len / page_size).
    """

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_logit_rows: int
    page_size: int

    @property
    def max_pages_per_seq(self) -> int:
        return -(-self.max_model_len // self.page_size)

    def bound(self, dim: Dim) -> int:
        """The largest value that a dimension can take."""
        if isinstance(dim, int):
            return dim
        return {
            "N": self.max_num_batched_tokens,
            "S": self.max_num_seqs,
            "S+1": self.max_num_seqs + 1,
            "R": self.max_logit_rows,
            "P": self.max_pages_per_seq,
        }[dim]


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """A tensor of the step.

    weight  parameters, constant; `sources` are the model's parameter names, stacked on axis 0;
            multipliers and scales of a quantized weight name it as their `base` and are stored
            inside it
    arena   a temporary at byte `offset` of the arena; row-major and dense
    view    rows of another buffer: element `offset` inside each row of `base`, rows `row_stride`
            elements apart; the dimensions after the first are dense
    cache   pages of keys or values: shape (pages, kv heads, page size, head size), where pages is
            the runtime's choice and written 0; the order of elements inside one (page, head) is
            the target's own. Where they are int8, their scales: (pages, kv heads, page size)
    input   an array of the step's inputs        output   an array that the step fills
    """

    name: str
    dtype: DType
    shape: tuple[Dim, ...]
    kind: Kind
    offset: int = 0
    base: str = ""
    row_stride: int = 0
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One operation of the step: an op of `ingot.ops` applied to named buffers.

    `inputs` and `outputs` map the op's argument names to buffer names, an absent optional
    argument has no entry; `attrs` holds the op's scalars; `origin` is the module path in the
    model that the instruction comes from. An op that writes into one of its arguments (a cache)
    lists that buffer under `inputs`.
    """

    op: str
    inputs: dict[str, str]
    outputs: dict[str, str]
    attrs: dict[str, Attr]
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Where a temporary lies in the arena, and from which instruction to which it lives."""

    name: str
    offset: int
    nbytes: int
    first_use: int
    last_use: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """The arena: its size and the slot of every temporary."""

    arena_bytes: int
    slots: tuple[Slot, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One step of a model, ready for a code generator."""

    limits: Limits
    buffers: tuple[Buffer, ...]
    instructions: tuple[Instruction, ...]
    memory: MemoryPlan

    def buffer(self, name: str) -> Buffer:
        """The buffer of that name; KeyError if there is none."""
        return self.by_name()[name]

    def by_name(self) -> dict[str, Buffer]:
        return {buffer.name: buffer for buffer in self.buffers}

    def page_sizes(self) -> list[int]:
        """Bytes of one page of each cache."""
        return [
            stored_bytes(cache.dtype, math.prod(map(self.limits.bound, cache.shape[1:])))
            for cache in self.of_kind("cache")
        ]

    @property
    def kv_dtype(self) -> str:
        """What keys and values are stored in; empty for a plan without caches."""
        return next((cache.dtype for cache in self.of_kind("cache")), "")

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that one token takes in the caches of all layers."""
        return sum(self.page_sizes()) // self.limits.page_size

    def of_kind(self, kind: Kind) -> tuple[Buffer, ...]:
        """The buffers of one kind, in plan order."""
        return tuple(buffer for buffer in self.buffers if buffer.kind == kind)
