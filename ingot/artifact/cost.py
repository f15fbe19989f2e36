"""The least that an instruction must read from memory and compute; traits name these functions.

Bytes count if they must come from memory however large the processor's caches are: weights (only
the rows of the step's tokens, for an embedding), and the keys and values that are seen. Temporaries
stay in the caches and count nothing. Operations count for products with weights and for attention;
everything else is small beside these.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ingot.artifact.plan import Buffer, Instruction
from ingot.artifact.spec import Dim


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """A step of equal sequences, each of which wants the logits of its last token.

    A sequence computes `new_tokens`, and then has `context` tokens, including the new ones. If it
    is not `finished`, more of its prompt comes in later steps, and it wants no logits yet.
    """

    sequences: int = 1
    new_tokens: int = 1
    context: int = 1
    finished: bool = True

    @property
    def tokens(self) -> int:
        return self.sequences * self.new_tokens

    def size(self, dim: Dim) -> int:
        """The value of a dimension over N, S and R."""
        if isinstance(dim, int):
            return dim
        rows = self.sequences if self.finished else 0
        return {"N": self.tokens, "S": self.sequences, "R": rows}[dim]

    def visible(self, window: int) -> int:
        """Keys of one sequence that some new token of it sees; a window of 0 means no window."""
        return min(self.context, window + self.new_tokens - 1) if window else self.context

    def pairs(self, window: int) -> int:
        """Pairs of a new token of one sequence and a key at or before it that it sees."""
        last, before = self.context, self.context - self.new_tokens
        if not window:
            return _triangle(last) - _triangle(before)
        growing = _triangle(min(last, window)) - _triangle(min(before, window))
        return growing + window * (max(last - window, 0) - max(before - window, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Bytes that are read, of weights and of KV cache, and operations by kind of arithmetic.

    A multiply-add is two operations.
    """

    weight_bytes: int = 0
    kv_bytes: int = 0
    operations: Mapping[str, int] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        return self.weight_bytes + self.kv_bytes

    @property
    def num_operations(self) -> int:
        return sum(self.operations.values())

    def __add__(self, other: Cost) -> Cost:
        kinds = {*self.operations, *other.operations}
        return Cost(
            weight_bytes=self.weight_bytes + other.weight_bytes,
            kv_bytes=self.kv_bytes + other.kv_bytes,
            operations={
                kind: self.operations.get(kind, 0) + other.operations.get(kind, 0)
                for kind in sorted(kinds)
            },
        )


def total(costs: Iterable[Cost]) -> Cost:
    return sum(costs, Cost())


Operands = Mapping[str, Buffer]


def read_weights(instruction: Instruction, operands: Operands, shape: StepShape) -> Cost:
    """An op that reads its weights and computes little."""
    weights = (buffer for buffer in operands.values() if buffer.kind == "weight")
    return Cost(weight_bytes=sum(map(_nbytes, weights)))


def lookup(instruction: Instruction, operands: Operands, shape: StepShape) -> Cost:
    """An op that reads one row of a table for each token."""
    table, rows = operands["weight"], shape.size(operands["tokens"].shape[0])
    return Cost(weight_bytes=_nbytes(table) * rows // int(table.shape[0]))


def product(instruction: Instruction, operands: Operands, shape: StepShape) -> Cost:
    """A product of rows and a matrix, in the arithmetic of the rows."""
    matrix, x = operands["weight"], operands["x"]
    rows = shape.size(x.shape[0])
    if rows == 0:
        return Cost()
    operations = 2 * rows * math.prod(int(dim) for dim in matrix.shape)
    return read_weights(instruction, operands, shape) + arithmetic(x.dtype, operations)


def arithmetic(dtype: str, operations: int) -> Cost:
    """Operations on rows of a dtype; rows in int16 are two in int8."""
    if dtype == "int16":
        return Cost(operations={"int8": 2 * operations})
    return Cost(operations={dtype: operations})


def stacked_product(instruction: Instruction, operands: Operands, shape: StepShape) -> Cost:
    """Products of rows and matrices of stacks [E, O, K]: each row takes `top_k` of the E.

    Bytes are those of as many matrices as so many rows take on average, where each row picks
    evenly: E (1 - (1 - top_k / E)^rows).
    """
    x, picks = operands["x"], int(instruction.attrs["top_k"])
    rows = shape.size(x.shape[0])
    pairs = picks * rows
    stacks = [b for b in operands.values() if b.kind == "weight" and len(b.shape) == 3]
    count = int(stacks[0].shape[0])
    whole = read_weights(instruction, operands, shape).weight_bytes
    elements = sum(math.prod(map(int, stack.shape[1:])) for stack in stacks)
    read = Cost(weight_bytes=round(whole * (1 - (1 - picks / count) ** rows)))
    return read + arithmetic(x.dtype, 2 * pairs * elements)


def attention(instruction: Instruction, operands: Operands, shape: StepShape) -> Cost:
    """Attention: reads keys and values once a sequence, and takes 2 operations for each element of
    a query, in int8 if that is rounded so, and for each of a result."""
    window = int(instruction.attrs.get("window", 0))
    query = operands["q"]
    heads, size = map(int, query.shape[1:])
    value_size = int(instruction.attrs.get("value_size", 0)) or int(operands["v_cache"].shape[-1])
    token_bytes = sum(map(_token_bytes, (b for b in operands.values() if b.kind == "state")))
    each = 2 * heads * shape.sequences * shape.pairs(window)
    scored = "int8" if instruction.attrs.get("rounds_queries") else query.dtype
    return (
        read_weights(instruction, operands, shape)
        + Cost(kv_bytes=shape.sequences * shape.visible(window) * token_bytes)
        + Cost(operations={scored: each * size})
        + Cost(operations={query.dtype: each * value_size})
    )


def segment_attention(instruction: Instruction, operands: Operands, shape: StepShape) -> Cost:
    """Attention of the new tokens of each sequence over themselves: 2 operations for each element
    of a query and of a result. Keys and values are temporaries."""
    query, window = operands["q"], int(instruction.attrs.get("window", 0))
    heads, size = map(int, query.shape[1:])
    new = StepShape(new_tokens=shape.new_tokens, context=shape.new_tokens)
    pairs = new.pairs(window)
    if not instruction.attrs.get("causal"):
        pairs += pairs - new.tokens  # as many behind a token as before it
    each = 2 * heads * (size + int(operands["v"].shape[-1]))
    return Cost(operations={query.dtype: each * shape.sequences * pairs})


# Multiply-adds of each element of a state and token, by the rule of a recurrence: decay and sum are
# one, and so is each product of the whole matrix with a vector.
_PASSES = {"add": 2.5, "delta": 3.5, "low_rank": 4.5}


def recurrence(instruction: Instruction, operands: Operands, shape: StepShape) -> Cost:
    """A recurrence: reads and writes the record of each sequence, and passes over its matrices for
    every token. In cells it writes these where one is complete, and reads half a cell of rows."""
    state, grid = operands["state"], int(instruction.attrs.get("grid", 0))
    matrices = int(operands["k"].shape[-1]) * operands["v"].columns
    rows = math.prod(map(int, state.shape[1:])) - matrices
    written = min(1.0, shape.new_tokens / grid) if grid else 1.0
    moved = round((1 + written) * matrices + (0.5 + written) * rows)
    operations = round(2 * _PASSES[str(instruction.attrs["rule"])]) * matrices
    num_bytes = shape.sequences * state.format.nbytes((moved,))
    own = Cost(kv_bytes=num_bytes, operations={"float32": shape.tokens * operations})
    return read_weights(instruction, operands, shape) + own


def selective_scan(instruction: Instruction, operands: Operands, shape: StepShape) -> Cost:
    """A scan of channels: for each element of a record an exponential, three products, two sums."""
    state = operands["state"]
    elements = math.prod(map(int, state.shape[1:]))
    num_bytes = 2 * shape.sequences * state.format.nbytes((elements,))
    own = Cost(kv_bytes=num_bytes, operations={"float32": 6 * shape.tokens * elements})
    return read_weights(instruction, operands, shape) + own


def _nbytes(weight: Buffer) -> int:
    return weight.format.nbytes([*map(int, weight.shape)])


def _token_bytes(state: Buffer) -> int:
    """Bytes of one token in pages of shape (pages, heads, page size, size)."""
    _, heads, _, size = state.shape
    return state.format.nbytes((int(heads), int(size)))


def _triangle(n: int) -> int:
    return n * (n + 1) // 2
