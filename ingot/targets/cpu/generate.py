"""The CPU code generator: a plan becomes one C++ translation unit.

The unit holds the whole step as one function that every thread of the pool runs, a straight line
of kernel calls with the model's constants as template arguments. Text is a function of the plan
alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from textwrap import wrap
from typing import Literal

from ingot.artifact.codec import encode_plan
from ingot.artifact.formats import Spans
from ingot.artifact.plan import Buffer, DType, Instruction, Plan
from ingot.artifact.select import ABI
from ingot.artifact.target import Target
from ingot.errors import CodegenError
from ingot.targets.cpu.barriers import Barrier, barriers
from ingot.targets.cpu.call import WIDTH
from ingot.targets.cpu.calls import emit, stored_as_panels
from ingot.targets.cpu.operands import Operands, columns, where
from ingot.targets.cpu.row_wise import attends, is_row_wise
from ingot.targets.cpu.sizes import SIZES, Size, sizes_with_own_rows

PANEL_COLUMNS = {"linear": "panel_columns", "quantized_linear": "quantized_columns"}
Layout = Literal["rows", "panels", "int8-panels", "int4-panels"]


@dataclass(frozen=True, slots=True)
class WeightLayout:
    """How the packer stores a weight.

    rows          as they are
    panels        of 64 columns of a linear; see pack.py
    int8-panels, int4-panels   of 32 columns, with their multipliers and scales, shared as `spans`
                  says, between them; see quantized_panels.py
    """

    name: str
    layout: Layout
    dtype: DType
    shape: tuple[int, ...]
    spans: Spans | None = None

    @property
    def bits(self) -> int:
        """Of the integers of a quantized weight."""
        return 4 if self.dtype == "int4" else 8


@dataclass(frozen=True, slots=True)
class Generated:
    """The text of step.cpp, and the layout of every stored weight in the order of the plan.

    Multipliers and scales of quantized weights are stored with those and have no layout of their
    own; kernels never read the pointer to them.
    """

    source: str
    weights: tuple[WeightLayout, ...]


def generate(plan: Plan, target: Target) -> Generated:
    """C++ for a plan.

    Raises:
        CodegenError: an operation or a shape that no kernel here takes.
    """
    if target.kind != "cpu":
        raise CodegenError(f"target {target.name} is not a CPU")
    operands = Operands(plan)
    source = UNIT.format(
        target=target.name,
        body="\n".join((*_evenness(operands), *_body(operands), *_maxima(operands))),
        abi=ABI,
        plan=hashlib.sha256(encode_plan(plan)).hexdigest()[:16],
        num_instructions=len(plan.instructions),
        num_weights=len(plan.of_kind("weight")),
        num_caches=len(plan.of_kind("cache")),
        arena_bytes=plan.memory.arena_bytes,
        vocabulary=_head(operands)[0],
    )
    return Generated(source=source, weights=_weights(operands))


def _body(operands: Operands) -> list[str]:
    """One paragraph an instruction: its number and place, and its call.

    Row-wise instructions that follow one another without a barrier are one loop over blocks of
    rows, so that a row is still in the cache when the next of them reads it.
    """
    lines: list[str] = []
    blocks = ""
    instructions = operands.plan.instructions
    calls = [emit(operands, instruction) for instruction in instructions]
    parts, waits = _parts(operands), barriers(operands)
    for index, (instruction, call, part, barrier) in enumerate(
        zip(instructions, calls, parts, waits, strict=True)
    ):
        before, blocks = blocks, _row_blocks(operands, instruction)
        joins = blocks == before and barrier == Barrier()
        if before and not joins:
            lines.append("  }")
        lines += ["", *_wait(barrier)]
        if blocks and not joins:
            lines.append(f"  for (const Slice block : {blocks}) {{")
        indent = "    " if blocks else "  "
        lines += [*_comment(index, instruction, indent), f"{indent}clock.mark({index});"]
        lines += call.lines(part, indent)
    return [*lines, "  }"] if blocks else lines


def _wait(barrier: Barrier) -> list[str]:
    even, uneven = _condition(barrier.even), _condition(barrier.uneven)
    condition = even if even == uneven else f"even ? {even} : {uneven}"
    if condition == "false":
        return []
    return ["  barrier.wait();" if condition == "true" else f"  if ({condition}) barrier.wait();"]


def _condition(sizes: frozenset[Size]) -> str:
    """C++ for: the step is of one of these sizes."""
    if len(sizes) == len(SIZES):
        return "true"
    return " || ".join(size for size in SIZES if size in sizes) or "false"


def _evenness(operands: Operands) -> list[str]:
    """Whether threads have equally many KV heads, and what deals rows if they have not."""
    heads = {int(cache.shape[1]) for cache in operands.plan.of_kind("cache")}
    even = " && ".join(f"even_heads({count}, team)" for count in sorted(heads)) or "true"
    unused = "  [[maybe_unused]] const"
    return [
        f"{unused} bool even = {even};",
        f"{unused} Slice own_if_uneven = even ? own_if_many : own_unless_few;",
    ]


def _maxima(operands: Operands) -> list[str]:
    """What follows a head, before anybody reads its logits."""
    vocabulary, columns = _head(operands)
    call = f"head_maxima<{vocabulary}, {columns}>(team, R, step.logits, memory.head_maxima);"
    return ["", f"  {call}"] if vocabulary else []


def _head(operands: Operands) -> tuple[int, str]:
    """The vocabulary, and the columns of a panel, of the product that ends a step; 0 for none."""
    last = operands.plan.instructions[-1] if operands.plan.instructions else None
    if last is None or last.op not in PANEL_COLUMNS:
        return 0, ""
    out = operands.of(last, "out")
    return (columns(out), PANEL_COLUMNS[last.op]) if out.kind == "output" else (0, "")


def _parts(operands: Operands) -> Iterator[str]:
    """What a thread is told of its part of each instruction."""
    even, uneven = (sizes_with_own_rows(operands, even=even) for even in (True, False))
    return map(partial(_part, operands), operands.plan.instructions, even, uneven)


def _part(
    operands: Operands,
    instruction: Instruction,
    even: frozenset[Size],
    uneven: frozenset[Size],
) -> str:
    """The generated function's name for it; in which steps an instruction deals rows decides."""
    if is_row_wise(instruction):
        return "block"
    if attends(instruction):
        return "team"
    if "some" in even:
        return "own_unless_few"
    if "some" in uneven:
        return "own_if_uneven"
    if "many" in even:
        return "own_if_many"
    return f"all_rows({operands.rows_of(instruction)}, team)"


def _row_blocks(operands: Operands, instruction: Instruction) -> str:
    """The blocks of rows of a row-wise instruction that are a thread's; empty for any other."""
    if not is_row_wise(instruction):
        return ""
    (result, *_) = instruction.outputs.values()
    team = "alone" if result in operands.own else "team"
    return f"row_blocks({operands.rows_of(instruction)}, {team})"


def _comment(index: int, instruction: Instruction, indent: str) -> list[str]:
    results = ", ".join(instruction.outputs.values()) or "no result"
    text = f"{index} {instruction.origin}: {', '.join(instruction.inputs.values())} -> {results}"
    return wrap(
        text,
        width=WIDTH,
        initial_indent=f"{indent}// ",
        subsequent_indent=f"{indent}//     ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _weights(operands: Operands) -> tuple[WeightLayout, ...]:
    quantized = _quantized(operands.plan)
    return tuple(
        quantized.get(buffer.name)
        or WeightLayout(
            name=buffer.name,
            layout="panels" if stored_as_panels(operands, buffer) else "rows",
            dtype=buffer.dtype,
            shape=_shape(buffer),
        )
        for buffer in operands.plan.of_kind("weight")
        if not buffer.base
    )


def _quantized(plan: Plan) -> dict[str, WeightLayout]:
    """The layouts of quantized weights, by name, as the instructions that read them say."""
    buffers, layouts = plan.by_name(), dict[str, WeightLayout]()
    for instruction in plan.instructions:
        if "weight_scales" not in instruction.inputs:
            continue
        weight, attrs = buffers[instruction.inputs["weight"]], instruction.attrs
        layout = WeightLayout(
            name=weight.name,
            layout="int4-panels" if attrs["bits"] == 4 else "int8-panels",
            dtype=weight.dtype,
            shape=_shape(weight),
            spans=Spans(int(attrs["group"]), int(attrs["block"])),
        )
        if layouts.setdefault(weight.name, layout) != layout:
            raise CodegenError(f"{weight.name} is read in two layouts: {where(instruction)}")
    return layouts


def _shape(buffer: Buffer) -> tuple[int, ...]:
    return tuple(int(dim) for dim in buffer.shape)


UNIT = """\
// One step of a model for {target}, generated by ingot from its plan.
// Every thread of the pool runs `run_step`; each paragraph is one instruction of the plan,
// under its number, the module it comes from, and its operands. In a step of few rows each thread
// computes for itself what is computed row by row, in one of many it has rows of its own.

#include "ingot.h"

namespace {{

using namespace ingot;

[[maybe_unused]] void run_step([[maybe_unused]] const Memory& memory, const ingot_step& step,
                               [[maybe_unused]] Team team, [[maybe_unused]] Barrier& barrier,
                               [[maybe_unused]] Clock& clock) {{
  [[maybe_unused]] const int N = step.num_tokens, S = step.num_seqs, R = step.num_rows;
  [[maybe_unused]] const Sequences sequences{{S, step.query_start, step.context_lens,
                                             step.page_table, step.page_table_stride}};
  [[maybe_unused]] const bool few = has_few(N, team), many = has_many(N, team);
  [[maybe_unused]] const bool some = !few && !many;
  [[maybe_unused]] const Memory own = few ? memory.of(team) : memory;
  [[maybe_unused]] const Team alone = few ? team.alone() : team;
  [[maybe_unused]] const Slice own_unless_few = few ? all_rows(N, team) : own_rows(N, team);
  [[maybe_unused]] const Slice own_if_many = many ? own_rows(N, team) : all_rows(N, team);
{body}
}}

using StepModel = Model<run_step, {num_instructions}, {num_weights}, {num_caches}, {arena_bytes},
                        {vocabulary}>;

}}  // namespace

#define INGOT_EXPORT extern "C" __attribute__((visibility("default")))

INGOT_EXPORT std::int32_t ingot_abi() {{ return {abi}; }}

// The beginning of the SHA-256 of the plan that this was generated from.
INGOT_EXPORT std::uint64_t ingot_plan() {{ return 0x{plan}u; }}

INGOT_EXPORT void* ingot_open(const ingot_model* model) {{ return StepModel::open(*model); }}

INGOT_EXPORT std::int32_t ingot_run(void* model, const ingot_step* step) {{
  return static_cast<StepModel*>(model)->run(*step);
}}

// As ingot_run; the nanoseconds of each instruction go to `times`, those of all else to its end.
INGOT_EXPORT std::int32_t ingot_run_timed(void* model, const ingot_step* step,
                                          std::int64_t* times) {{
  return static_cast<StepModel*>(model)->run(*step, times);
}}

INGOT_EXPORT std::int64_t ingot_sampler_bytes(std::int32_t vocabulary) {{
  return SamplerMemory::bytes(vocabulary);
}}

INGOT_EXPORT void ingot_sample(void* model, const ingot_sampling* sampling) {{
  static_cast<StepModel*>(model)->sample(*sampling);
}}

INGOT_EXPORT void ingot_close(void* model) {{ static_cast<StepModel*>(model)->close(); }}

// A limit of this machine, per second; needs no open model.
INGOT_EXPORT double ingot_measure(std::int32_t limit, std::int32_t threads, const void* data,
                                  std::int64_t bytes) {{
  return measure_limit(static_cast<Limit>(limit), threads, data, bytes);
}}
"""
