"""What a step must move and compute at least, counted from the plan."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ingot.artifact.plan import DTYPE_BYTES, Buffer, Plan


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes of weights and of KV cache, and floating-point operations."""

    weight_bytes: int
    kv_bytes: int
    flops: int


def prefill_cost(plan: Plan, tokens: int) -> Cost:
    """One prompt of that many tokens, logits for its last one."""
    attended = tokens * (tokens + 1) // 2
    return Cost(_weight_bytes(plan), 0, _linear_flops(plan, tokens) + _scores(plan) * attended)


def decode_cost(plan: Plan, context: int) -> Cost:
    """One token of one sequence with that many tokens in its context."""
    kv = sum(_nbytes(cache) for cache in plan.of_kind("cache")) // plan.limits.page_size
    return Cost(_weight_bytes(plan), kv * context, _linear_flops(plan, 1) + _scores(plan) * context)


def _linear_flops(plan: Plan, tokens: int) -> int:
    buffers = plan.by_name()
    total = 0
    for instruction in plan.instructions:
        if instruction.op == "linear":
            rows = 1 if buffers[instruction.inputs["x"]].shape[0] == "R" else tokens
            total += 2 * rows * math.prod(_sizes(buffers[instruction.inputs["weight"]]))
    return total


def _scores(plan: Plan) -> int:
    """Operations of all layers for one query row against one key row: scores and values."""
    buffers = plan.by_name()
    queries = [
        _sizes(buffers[i.inputs["q"]]) for i in plan.instructions if i.op == "paged_attention"
    ]
    return sum(4 * math.prod(sizes) for sizes in queries)


def _weight_bytes(plan: Plan) -> int:
    """Weights that are read whole; of an embedding only the rows of the tokens are."""
    read = {
        name
        for instruction in plan.instructions
        if instruction.op != "embedding"
        for name in instruction.inputs.values()
    }
    return sum(_nbytes(weight) for weight in plan.of_kind("weight") if weight.name in read)


def _nbytes(buffer: Buffer) -> int:
    return DTYPE_BYTES[buffer.dtype] * math.prod(_sizes(buffer))


def _sizes(buffer: Buffer) -> list[int]:
    """The sizes that are numbers, without the page count of a cache."""
    return [dim for dim in buffer.shape if isinstance(dim, int) and dim > 0]
