"""Where the operands of a unit end, for the address sanitizer to hold its kernels to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from ingot.artifact.plan import Buffer, arrays_of
from ingot.artifact.traits import traits_of
from ingot.targets.cpu.weights import WeightLayout, num_bytes
from tests.targets.cpu.native import Memory
from tests.targets.cpu.sanitized import Hole
from tests.targets.cpu.steps import Step
from tests.targets.cpu.units import Unit


@dataclass(frozen=True)
class End:
    """The end of an operand in a job's buffer of that number.

    last: its last part, which a step surely touches: a byte, or a page or record of a state.
    until: where what belongs to nobody ends.
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


def ends(unit: Unit, memory: Memory, step: Step) -> list[End]:
    """Those of every operand, in the order in which a job holds the buffers."""
    arena = len(memory.weights) + len(memory.caches)
    return [
        *_weights(unit, memory),
        *_states(unit, memory, step),
        *_temporaries(unit, arena, step),
        *_inputs(unit, memory, arena + 1, step),
    ]


def _weights(unit: Unit, memory: Memory) -> Iterator[End]:
    buffers = unit.plan.of_kind("weight")
    for number, (layout, buffer, data) in enumerate(
        zip(unit.layouts, buffers, memory.weights, strict=True)
    ):
        end = _end_of_weight(layout, buffer)
        yield End(layout.name, number, end - 1, end, data.nbytes)


def _end_of_weight(layout: WeightLayout, buffer: Buffer) -> int:
    """Of a stack the end of its last matrix: other stacks of its module lie in between."""
    if not layout.is_stack:
        return num_bytes(layout)
    assert buffer.row_stride, "stacks have their places"
    return (layout.shape[0] - 1) * buffer.row_stride + 2 * num_bytes(layout.half)


def _states(unit: Unit, memory: Memory, step: Step) -> Iterator[End]:
    """Of each array of a state."""
    arrays = [s for s in unit.plan.of_kind("state") for _ in arrays_of(s.format, (0,))]
    for number, (state, data) in enumerate(
        zip(arrays, memory.caches, strict=True), len(memory.weights)
    ):
        page, page_bytes = _last_page(unit, state, step), data.nbytes // memory.num_pages
        where = page * page_bytes, (page + 1) * page_bytes
        yield End(state.name, number, *where, data.nbytes)


def _last_page(unit: Unit, state: Buffer, step: Step) -> int:
    """Of those that are written, if the state is, and of those whose keys some row sees; or the
    last record that is written."""
    if len(state.shape) == 3:
        return int(step.inputs["records"].max())
    page_size, pages = int(state.shape[2]), []
    for i in unit.plan.instructions:
        if state.name not in i.inputs.values():
            continue
        if traits_of(i).mutates:
            pages.append(int(step.inputs["slots"].max()) // page_size)
        else:
            pages += [int(p) for p in _pages_seen(step, page_size, int(i.attrs["window"]))]
    return max(pages)


def _pages_seen(step: Step, page_size: int, window: int) -> Iterator[Tensor]:
    spans = step.inputs["spans"].tolist()
    for table, (begin, end, first) in zip(step.inputs["page_table"], spans, strict=True):
        oldest = max(0, first - window + 1) if window else 0
        yield from table[oldest // page_size : -(-(first + end - begin) // page_size)]


def _temporaries(unit: Unit, arena: int, step: Step) -> Iterator[End]:
    """Of their numbers and of their scales; no two of them share memory."""
    found = [
        (buffer.name, place)
        for buffer in unit.plan.of_kind("arena")
        for place in unit.places(buffer, step)
    ]
    starts = [*(place.start for _, place in found), unit.plan.memory.arena_bytes]
    for (name, place), (_, until) in zip(found, pairwise(starts), strict=True):
        yield End(name, arena, place.stop - 1, place.stop, until)


def _inputs(unit: Unit, memory: Memory, first: int, step: Step) -> Iterator[End]:
    read = {name for instruction in unit.plan.instructions for name in instruction.inputs.values()}
    for number, name in enumerate(memory.inputs, first):
        if name in read:
            end = 4 * step.inputs[name].numel()
            yield End(name, number, end - 1, end, end)
