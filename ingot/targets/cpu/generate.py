"""The CPU code generator: a plan becomes C++, in the units that functions.py lists.

The step is one function that every thread of the pool runs: a straight line of kernel calls, with
the model's constants as template arguments. The text depends on the plan and the target alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from string import Template
from textwrap import wrap

from ingot.artifact.codec import encode_plan
from ingot.artifact.plan import Plan
from ingot.artifact.programs import LOGITS
from ingot.artifact.select import ABI
from ingot.artifact.target import Target
from ingot.errors import CodegenError
from ingot.targets.cpu.barriers import Barrier, barriers
from ingot.targets.cpu.call import WIDTH, KernelCall
from ingot.targets.cpu.calls import emit, look_ahead, stored_as_panels
from ingot.targets.cpu.functions import INTERFACE, Function, functions_of, kernel_units
from ingot.targets.cpu.operands import Operands
from ingot.targets.cpu.sizes import SIZES, Size, sizes_with_own_rows
from ingot.targets.cpu.weights import WeightLayout, layout_of
from ingot.targets.cpu.work import CpuWork

STEP = Path(__file__).parent / "step.cpp"


def generate(plan: Plan, target: Target) -> dict[str, str]:
    """The source files of a plan, by name.

    Raises:
        CodegenError: no kernel here takes an operation or a shape.
    """
    if target.kind != "cpu":
        raise CodegenError(f"target {target.name} is not a CPU")
    operands = Operands(plan)
    calls = [emit(operands, kernel) for kernel in operands.work]
    maxima = _maxima(operands)
    parts = ["Team" if kernel.attends else "Slice" for kernel in operands.work]
    looks = _looks(operands)
    of_teams = ((call, "Team") for call in (*maxima, *looks.values()))
    functions = functions_of([*zip(calls, parts, strict=True), *of_teams])
    body = [*_evenness(operands), *_body(operands, calls, looks, functions)]
    for call in maxima:
        body += ["", *functions[call].lines(call, "team", "  ")]
    return step_sources(
        *functions.values(),
        target=target.name,
        body="\n".join(body),
        abi=ABI,
        plan=hashlib.sha256(encode_plan(plan)).hexdigest()[:16],
        num_kernels=len(plan.kernels),
        num_weights=len(plan.of_kind("weight")),
        num_caches=len(plan.state_arrays()),
        arena_bytes=plan.memory.arena_bytes,
        vocabulary=_head(operands)[0],
        sequences=_sequences(operands),
    )


def step_sources(*functions: Function, **values: object) -> dict[str, str]:
    """The source files of a step that calls these functions; `values` are those of step.cpp."""
    declarations = "\n".join(f"{function.signature};" for function in functions)
    template = Template(STEP.read_text(encoding="utf-8"))
    step = template.substitute(values, declarations=declarations)
    return {"step.cpp": step, **kernel_units(functions), **INTERFACE}


def _body(
    operands: Operands,
    calls: Sequence[KernelCall],
    looks: Mapping[int, KernelCall],
    functions: Mapping[KernelCall, Function],
) -> list[str]:
    """A paragraph for each kernel: its number and place, and its call.

    Row-wise kernels that follow one another without a barrier share a loop over blocks of rows, so
    that a row is still in the cache when the next kernel reads it.
    """
    lines = _look(looks, -1, functions)
    blocks = ""
    parts, waits = _parts(operands), barriers(operands)
    for index, (kernel, call, part, barrier) in enumerate(
        zip(operands.work, calls, parts, waits, strict=True)
    ):
        before, blocks = blocks, _row_blocks(operands, kernel)
        joins = blocks == before and barrier == Barrier()
        if before and not joins:
            lines.append("  }")
        lines += ["", *_wait(barrier)]
        if blocks and not joins:
            lines.append(f"  for (const Slice block : {blocks}) {{")
        indent = "    " if blocks else "  "
        lines += [*_comment(index, kernel, indent), f"{indent}if (clock.mark({index}))"]
        lines += functions[call.of_places()].lines(call, part, f"{indent}  ")
        lines += _look(looks, index, functions)
    return [*lines, "  }"] if blocks else lines


def _looks(operands: Operands) -> dict[int, KernelCall]:
    """Calls that announce the next attention over pages to a thread, by the number of the one
    before; -1 for none."""
    attend = [index for index, kernel in enumerate(operands.work) if kernel.has("paged_attention")]
    calls = [look_ahead(operands, operands.work[index]) for index in attend]
    away = KernelCall("look_away", (), ())
    return dict(zip((-1, *attend), (*calls, away), strict=True)) if attend else {}


def _look(
    looks: Mapping[int, KernelCall], after: int, functions: Mapping[KernelCall, Function]
) -> list[str]:
    call = looks.get(after)
    return functions[call.of_places()].lines(call, "team", "  ") if call else []


def _wait(barrier: Barrier) -> list[str]:
    even, uneven = _condition(barrier.even), _condition(barrier.uneven)
    condition = even if even == uneven else f"even ? {even} : {uneven}"
    if condition == "false":
        return []
    return ["  barrier.wait();" if condition == "true" else f"  if ({condition}) barrier.wait();"]


def _condition(sizes: frozenset[Size]) -> str:
    """A condition in C++: the step has one of these sizes."""
    if len(sizes) == len(SIZES):
        return "true"
    return " || ".join(size for size in SIZES if size in sizes) or "false"


def _evenness(operands: Operands) -> list[str]:
    """Code that tells if threads have equally many KV heads, and which kernels deal rows if not."""
    heads = {s.record[0] for s in operands.plan.spec.states if s.kind == "paged"}
    even = " && ".join(f"even_heads({count}, team)" for count in sorted(heads)) or "true"
    unused = "  [[maybe_unused]] const"
    return [
        f"{unused} bool even = {even};",
        f"{unused} Slice own_if_uneven = even ? own_if_many : own_unless_few;",
    ]


def _maxima(operands: Operands) -> list[KernelCall]:
    """The call that follows a head, before anybody reads its logits; none for other models."""
    vocabulary, columns = _head(operands)
    if not vocabulary:
        return []
    arguments = ("step.num_rows", operands.output(LOGITS), "memory.head_maxima")
    return [KernelCall("head_maxima", (vocabulary, columns), arguments)]


def _head(operands: Operands) -> tuple[int, str]:
    """The vocabulary, and the columns of a panel, of a product that ends a step with logits; 0 for
    none."""
    last = operands.work[-1] if operands.work else None
    if last is None or not last.has("linear"):
        return 0, ""
    product, (out,) = last.member("linear"), last.writes
    is_scaled = operands.of(product, "weight").format.is_scaled
    columns = operands.plan.buffer(out).columns
    if [each.name for each in operands.plan.spec.outputs] != [out] or out != LOGITS:
        return 0, ""
    return columns, f"{'quantized' if is_scaled else 'panel'}_columns"


def _sequences(operands: Operands) -> str:
    """Arguments that describe the sequences of a step to attention; nothing where none meet."""
    arrays = ("spans", "page_table")
    if not {*arrays} <= {each.name for each in operands.plan.spec.inputs}:
        return ""
    parts = ("S", *map(operands.input, arrays), "step.page_table_stride")
    return ",\n".join(f"      {part}" for part in parts).lstrip()


def _parts(operands: Operands) -> Iterator[str]:
    """Parts of each kernel for a thread, as the generated code names them."""
    even, uneven = (sizes_with_own_rows(operands.work, even=even) for even in (True, False))
    return map(_part, operands.work, even, uneven)


def _part(kernel: CpuWork, even: frozenset[Size], uneven: frozenset[Size]) -> str:
    """The generated function's name for a part; it depends on when the kernel deals rows."""
    if kernel.is_row_wise:
        return "block"
    if kernel.attends:
        return "team"
    if "some" in even:
        return "own_unless_few"
    if "some" in uneven:
        return "own_if_uneven"
    if "many" in even:
        return "own_if_many"
    return f"all_rows({kernel.rows}, team)"


def _row_blocks(operands: Operands, kernel: CpuWork) -> str:
    """A thread's blocks of rows of a row-wise kernel; empty for other kernels."""
    if not kernel.is_row_wise:
        return ""
    team = "alone" if kernel.writes[0] in operands.own else "team"
    return f"row_blocks({kernel.rows}, {team})"


def _comment(index: int, kernel: CpuWork, indent: str) -> list[str]:
    results = ", ".join(kernel.writes) or "no result"
    text = f"{index} {kernel.origin}: {', '.join(kernel.reads)} -> {results}"
    return wrap(
        text,
        width=WIDTH,
        initial_indent=f"{indent}// ",
        subsequent_indent=f"{indent}//     ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def weight_layouts(plan: Plan) -> tuple[WeightLayout, ...]:
    """Lists the layouts of a plan's weights, in the order of the plan."""
    operands = Operands(plan)
    return tuple(
        layout_of(buffer, multiplied=stored_as_panels(operands, buffer))
        for buffer in operands.plan.of_kind("weight")
    )
