"""Where the operands of a unit end, for the address sanitizer to hold its kernels to it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from ingot.artifact.plan import DTYPE_BYTES, Buffer, Instruction, Plan
from ingot.targets.cpu.generate import Generated
from ingot.targets.cpu.pack import num_bytes
from tests.targets.cpu.native import INPUTS, Memory
from tests.targets.cpu.sanitized import Hole

Inputs = Mapping[str, Tensor]
WRITES = ("kv_write", "rope_kv_write", "linear_rope_kv_write", "quantized_linear_rope_kv_write")


@dataclass(frozen=True)
class End:
    """The end of an operand in a job's buffer of that number.

    last: its last part, which a step surely touches: a byte, or a page of a cache. until: where
    what belongs to nobody ends.
    """

    name: str
    buffer: int
    last: int
    end: int
    until: int

    @property
    def rest(self) -> Hole:
        """What lies behind the operand."""
        return self.buffer, self.end, self.until

    @property
    def too_much(self) -> Hole:
        """That and the operand's own last part."""
        return self.buffer, self.last, self.until


def ends(plan: Plan, generated: Generated, memory: Memory, inputs: Inputs) -> list[End]:
    """Those of every operand, in the order in which a job holds the buffers."""
    arena = len(memory.weights) + len(memory.caches)
    return [
        *_weights(plan, generated, memory),
        *_caches(plan, memory, inputs),
        *_temporaries(plan, arena, inputs),
        *_inputs(plan, arena + 1, inputs),
    ]


def _weights(plan: Plan, generated: Generated, memory: Memory) -> Iterator[End]:
    stored = {layout.name: num_bytes(layout) for layout in generated.weights}
    for number, (buffer, data) in enumerate(
        zip(plan.of_kind("weight"), memory.weights, strict=True)
    ):
        if buffer.name in stored:
            end = stored[buffer.name]
            yield End(buffer.name, number, end - 1, end, data.nbytes)


def _caches(plan: Plan, memory: Memory, inputs: Inputs) -> Iterator[End]:
    used = {
        name: _last_page(instruction, buffer, inputs)
        for instruction in plan.instructions
        for name in instruction.inputs.values()
        if (buffer := plan.buffer(name)).kind == "cache"
    }
    for number, (buffer, data) in enumerate(zip(plan.of_kind("cache"), memory.caches, strict=True)):
        page, page_bytes = used[buffer.name], data.nbytes // memory.num_pages
        where = page * page_bytes, (page + 1) * page_bytes
        yield End(buffer.name, len(memory.weights) + number, *where, data.nbytes)


def _last_page(instruction: Instruction, cache: Buffer, inputs: Inputs) -> int:
    page_size = int(cache.shape[2])
    if instruction.op in WRITES:
        return int(inputs["slots"].max()) // page_size
    contexts = zip(inputs["page_table"], inputs["context_lens"].tolist(), strict=True)
    return max(int(pages[: -(-context // page_size)].max()) for pages, context in contexts)


def _temporaries(plan: Plan, arena: int, inputs: Inputs) -> Iterator[End]:
    """No two of them share memory."""
    rows = {"N": len(inputs["tokens"]), "R": len(inputs["logit_rows"])}
    buffers = plan.of_kind("arena")
    starts = [*(buffer.offset for buffer in buffers), plan.memory.arena_bytes]
    for buffer, (start, until) in zip(buffers, pairwise(starts), strict=True):
        shape = (rows[dim] if isinstance(dim, str) else dim for dim in buffer.shape)
        end = start + DTYPE_BYTES[buffer.dtype] * math.prod(shape)
        yield End(buffer.name, arena, end - 1, end, until)


def _inputs(plan: Plan, first: int, inputs: Inputs) -> Iterator[End]:
    read = {name for instruction in plan.instructions for name in instruction.inputs.values()}
    for number, name in enumerate(INPUTS, first):
        if name in read:
            end = 4 * inputs[name].numel()
            yield End(name, number, end - 1, end, end)
