"""The plan: pure data between the front end and the targets.

A plan lists the buffers of a program, the instructions that run over them in order, the groups of
instructions that a target runs as one kernel, and the place of each temporary in the arena. It is
written as JSON and read without torch. Shapes are over the symbols of `ingot.artifact.spec`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from ingot.artifact.formats import DType, Format, stored_bytes
from ingot.artifact.spec import Array, Dim, Spec, State, StateKind

Kind = Literal["weight", "arena", "inner", "view", "state", "input", "output"]
Attr = bool | int | float | str

ALIGNMENT = 64  # bytes: a cache line, and the widest vector register


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
            "R": self.max_logit_rows,
            "P": self.max_pages_per_seq,
        }[dim]


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """A tensor of a program.

    weight  parameters, constant; `sources` are the model's parameter names, stacked on axis 0. A
            stack [E, O, K] may lie in the tensor `base` of the file: its first matrix from byte
            `offset` on, and matrices `row_stride` bytes apart
    arena   a temporary at byte `offset` of the arena; row-major and dense. The scales of a scaled
            one follow it, from the next multiple of 64 bytes on
    inner   a temporary that only the kernel of its group sees; it has no memory
    view    rows of another buffer: element `offset` inside each row of `base`, rows `row_stride`
            elements apart; the dimensions after the first are dense
    state   memory that outlives a step; each target chooses the order of elements inside one
            (page, head)
    input   an array of the step's inputs        output   an array that the step fills
    """

    name: str
    format: Format
    shape: tuple[Dim, ...]
    kind: Kind
    offset: int = 0
    base: str = ""
    row_stride: int = 0
    sources: tuple[str, ...] = ()

    @property
    def dtype(self) -> DType:
        return self.format.dtype

    @property
    def columns(self) -> int:
        """Elements of a row."""
        return math.prod(int(dim) for dim in self.shape[1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One primitive applied to named buffers; see `ingot.artifact.traits`.

    `inputs` and `outputs` map the primitive's argument names to buffer names; an absent optional
    argument has no entry. `attrs` holds its scalars. `origin` is the module of the model that it
    comes from. The formats of the buffers say what is rounded to what. An instruction that writes
    into one of its arguments (a state) lists that buffer under `inputs`.
    """

    op: str
    inputs: dict[str, str]
    outputs: dict[str, str]
    attrs: dict[str, Attr]
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Neighbouring instructions that a target runs as one kernel.

    A group means what its instructions mean, run in order.
    """

    kernel: str
    first: int
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """The place of a temporary in the arena, and the first and last kernel that use it."""

    name: str
    offset: int
    nbytes: int
    first_use: int
    last_use: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """The arena: its size and the slot of every temporary."""

    arena_bytes: int = 0
    slots: tuple[Slot, ...] = ()


@dataclass(frozen=True, slots=True)
class StateArray:
    """An array of a state: how that keeps its records, and the bytes of one page or one slot."""

    kind: StateKind
    nbytes: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One program of a model, as a target runs it.

    Buffers of the inputs, states and outputs follow from `spec` and are not among `buffers`.
    `multiplied` are weights that products of other programs read: all programs of an artifact find
    a weight packed in one way.
    """

    limits: Limits
    spec: Spec
    buffers: tuple[Buffer, ...]
    instructions: tuple[Instruction, ...]
    groups: tuple[Group, ...] = ()
    memory: MemoryPlan = MemoryPlan()
    multiplied: tuple[str, ...] = ()

    def buffer(self, name: str) -> Buffer:
        """The buffer of that name; KeyError if there is none."""
        return self.by_name[name]

    @cached_property
    def by_name(self) -> Mapping[str, Buffer]:
        """All buffers."""
        buffers = (
            *(_array_buffer(array, "input") for array in self.spec.inputs),
            *(_array_buffer(array, "output") for array in self.spec.outputs),
            *(_state_buffer(state, self.limits) for state in self.spec.states),
            *self.buffers,
        )
        return {buffer.name: buffer for buffer in buffers}

    def of_kind(self, kind: Kind) -> tuple[Buffer, ...]:
        """The buffers of one kind, in plan order."""
        return tuple(buffer for buffer in self.by_name.values() if buffer.kind == kind)

    def root(self, name: str) -> Buffer:
        """The buffer whose memory a buffer lies in."""
        buffer = self.by_name[name]
        return self.by_name[buffer.base] if buffer.kind == "view" else buffer

    @cached_property
    def kernels(self) -> tuple[Group, ...]:
        """Kernels in order: the groups, and every other instruction by itself."""
        starts = {group.first: group for group in self.groups}
        found, index = [], 0
        while index < len(self.instructions):
            op = self.instructions[index].op
            found.append(starts.get(index) or Group(kernel=op, first=index))
            index += found[-1].count
        return tuple(found)

    def members(self, group: Group) -> tuple[Instruction, ...]:
        """The instructions of a group."""
        return self.instructions[group.first : group.first + group.count]

    def arena_bytes_of(self, buffer: Buffer) -> int:
        """Bytes of a temporary in the largest step, its scales included."""
        shape = [*map(self.limits.bound, buffer.shape)]
        numbers, *scales = (stored_bytes(*each) for each in arrays_of(buffer.format, shape))
        return scales_offset(buffer.format, shape) + sum(scales) if scales else numbers

    @property
    def stack_bytes(self) -> int:
        """Bytes of the tensors that hold stacks: weights of which a step reads what it picks."""
        held = {b.base: int(b.shape[0]) * b.row_stride for b in self.of_kind("weight") if b.base}
        return sum(held.values())

    def state_arrays(self) -> list[StateArray]:
        """The arrays of all states, in order: of each its numbers, then its scales."""
        arrays = []
        for state in self.spec.states:
            _, *shape = state.shape(self.limits.page_size)
            unit = [*map(self.limits.bound, shape)]
            for dtype, numbers in arrays_of(state.format, unit):
                arrays.append(StateArray(state.kind, stored_bytes(dtype, numbers)))
        return arrays

    def page_sizes(self) -> list[int]:
        """Bytes of a page in each array of paged states."""
        return [array.nbytes for array in self.state_arrays() if array.kind == "paged"]

    @property
    def slot_bytes(self) -> int:
        """Bytes of the records of one sequence in all slotted states."""
        return sum(array.nbytes for array in self.state_arrays() if array.kind == "slotted")

    @property
    def rewinds(self) -> bool:
        """Tells whether a sequence can go on from any of its tokens.

        Pages hold a record of every token, and a slot only that of the last: it has to be copied
        before a step that computes what may turn out wrong.
        """
        return all(state.kind == "paged" for state in self.spec.states)

    @property
    def grid(self) -> int:
        """How many tokens its recurrences take up together; 0 if they take up one by one, or there
        are none. Results differ in their last bits."""
        return max((int(i.attrs.get("grid", 0)) for i in self.instructions), default=0)

    @property
    def kv_dtype(self) -> str:
        """The dtype of stored keys and values; empty for a plan that stores none."""
        paged = (state for state in self.spec.states if state.kind == "paged")
        return next((state.format.dtype for state in paged), "")

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that one token takes in the pages of all layers."""
        return sum(self.page_sizes()) // self.limits.page_size


def arrays_of(format: Format, shape: Sequence[int]) -> list[tuple[str, int]]:
    """(dtype, count) of each array that stores rows of that shape: numbers, then scales."""
    numbers = (format.dtype, math.prod(shape))
    if not format.is_scaled:
        return [numbers]
    *rows, columns = shape
    return [numbers, (format.scale, math.prod(rows) * format.blocks_of(columns))]


def scales_offset(format: Format, shape: Sequence[int]) -> int:
    """Bytes from the start of rows of that shape in the arena to their scales."""
    return aligned(stored_bytes(format.dtype, math.prod(shape)))


def aligned(nbytes: int) -> int:
    """The next multiple of the alignment."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _array_buffer(array: Array, kind: Kind) -> Buffer:
    return Buffer(name=array.name, format=Format(array.dtype), shape=array.shape, kind=kind)


def _state_buffer(state: State, limits: Limits) -> Buffer:
    shape = state.shape(limits.page_size)
    return Buffer(name=state.name, format=state.format, shape=shape, kind="state")
