"""What a step must read from memory and compute at least, counted from the plan.

Counted are what must come from memory whatever the caches of the processor hold: weights, of an
embedding only the rows of the step's tokens, and the keys and values that are seen. Temporaries
stay in the caches and count nothing. Of the arithmetic, products with weights and attention
count; all else is small beside them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ingot.artifact.plan import Buffer, Dim, Instruction, Plan, stored_bytes

# How a product with weights of a dtype is computed: int4 is unpacked to int8.
ARITHMETIC: Mapping[str, str] = {
    "float32": "float32",
    "bfloat16": "bfloat16",
    "int8": "int8",
    "int4": "int8",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """A step of sequences that are alike, each of which wants the logits of its last token.

    A sequence computes `new_tokens` and has `context` tokens afterwards, these included.
    """

    sequences: int = 1
    new_tokens: int = 1
    context: int = 1

    @property
    def tokens(self) -> int:
        return self.sequences * self.new_tokens

    def size(self, dim: Dim) -> int:
        """The value of a dimension over N, S and R."""
        if isinstance(dim, int):
            return dim
        return {"N": self.tokens, "S": self.sequences, "R": self.sequences}[dim]

    def visible(self, window: int) -> int:
        """Keys of one sequence that any of its new tokens sees; a window of 0 is no window."""
        return min(self.context, window + self.new_tokens - 1) if window else self.context

    def pairs(self, window: int) -> int:
        """Pairs of a new token and a key that it sees, of one sequence."""
        last, before = self.context, self.context - self.new_tokens
        if not window:
            return _triangle(last) - _triangle(before)
        growing = _triangle(min(last, window)) - _triangle(min(before, window))
        return growing + window * (max(last - window, 0) - max(before - window, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Bytes of weights and of KV cache that are read, and operations by kind of arithmetic.

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


def step_cost(plan: Plan, shape: StepShape) -> Cost:
    """The cost of a whole step."""
    return total(instruction_costs(plan, shape))


def instruction_costs(plan: Plan, shape: StepShape) -> list[Cost]:
    """The cost of each instruction of a step."""
    buffers = plan.by_name()
    return [_cost(instruction, buffers, plan, shape) for instruction in plan.instructions]


def weight_bytes(buffer: Buffer) -> int:
    """Bytes of a weight, dense."""
    return stored_bytes(buffer.dtype, math.prod(int(dim) for dim in buffer.shape))


def _cost(
    instruction: Instruction, buffers: Mapping[str, Buffer], plan: Plan, shape: StepShape
) -> Cost:
    inputs = {argument: buffers[name] for argument, name in instruction.inputs.items()}
    weights = [buffer for buffer in inputs.values() if buffer.kind == "weight"]
    caches = [buffer for buffer in inputs.values() if buffer.kind == "cache"]
    if instruction.op.endswith("embedding"):
        rows = shape.size(inputs["tokens"].shape[0])
        gathered = sum(weight_bytes(b) * rows // int(b.shape[0]) for b in weights)
        return Cost(weight_bytes=gathered)
    nbytes = sum(map(weight_bytes, weights))
    if instruction.op.startswith("paged_attention"):
        return _attention(instruction, inputs, caches, plan, shape)
    matrix = inputs.get("weight")
    if matrix is None or len(matrix.shape) < 2:
        return Cost(weight_bytes=nbytes)
    (result, *_) = instruction.outputs.values()
    elements = math.prod(int(dim) for dim in matrix.shape)
    operations = 2 * shape.size(buffers[result].shape[0]) * elements
    return Cost(weight_bytes=nbytes, operations={ARITHMETIC[matrix.dtype]: operations})


def _attention(
    instruction: Instruction,
    inputs: Mapping[str, Buffer],
    caches: list[Buffer],
    plan: Plan,
    shape: StepShape,
) -> Cost:
    """Keys and values are read once a sequence; scores and values are 4 operations an element."""
    window = int(instruction.attrs.get("window", 0))
    query = inputs["q"]
    elements = math.prod(int(dim) for dim in query.shape[1:])
    token_bytes = sum(_token_bytes(cache, plan) for cache in caches)
    return Cost(
        kv_bytes=shape.sequences * shape.visible(window) * token_bytes,
        operations={ARITHMETIC[query.dtype]: 4 * elements * shape.sequences * shape.pairs(window)},
    )


def _token_bytes(cache: Buffer, plan: Plan) -> int:
    """Bytes of one token in a cache of shape (pages, ...), whose pages hold `page_size` tokens."""
    page = stored_bytes(cache.dtype, math.prod(int(dim) for dim in cache.shape[1:]))
    return page // plan.limits.page_size


def _triangle(n: int) -> int:
    return n * (n + 1) // 2
