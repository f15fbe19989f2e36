"""Runs the launches of a plan in Triton's interpreter, over poisoned memory with fences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ingot.artifact.formats import stored_bytes
from ingot.artifact.launches import MOST_KEYS, MOST_ROWS, WORKSPACE, LaunchArgument
from ingot.artifact.plan import Buffer, Group, Plan
from ingot.compiler.interpret import Value, interpret
from ingot.ops.dtypes import TORCH_DTYPES
from ingot.ops.scaled import Scaled
from ingot.ops.steps import step_inputs
from ingot.targets.cuda import interpreter
from ingot.targets.cuda.call import Call, Emit
from ingot.targets.cuda.operands import Operands, Pointer
from ingot.targets.cuda.pack import matrix_of, pieces_of
from ingot.targets.cuda.parameters import defaults, leaves
from ingot.targets.cuda.weights import is_stack, matrix_bytes
from ingot.targets.work import Work

FENCE = 256  # bytes before and after each array
POISON = 0xCB  # of fences, and of what nobody has written yet
PAGE = 16

Values = Mapping[str, Value]


def one_group(plan: Plan, kernel: str, stores: tuple[str, ...] = ()) -> Plan:
    """The plan as a single kernel; all results but the last and `stores` stay inside it."""
    last = plan.instructions[-1].outputs.values()
    made = {name for i in plan.instructions for name in i.outputs.values()}
    inner = made - {*last, *stores}
    return replace(
        plan,
        groups=(Group(kernel=kernel, first=0, count=len(plan.instructions)),),
        buffers=tuple(replace(b, kind="inner") if b.name in inner else b for b in plan.buffers),
    )


def rows_of_one(count: int) -> dict[str, Tensor]:
    """The inputs of a step of one sequence with so many tokens; token i is i."""
    return step_inputs([list(range(count))], [0], [list(range(-(-count // PAGE)))], PAGE)


@dataclass
class Memory:
    """Arrays as bytes between fences, by buffer and by the number of the array."""

    arrays: dict[tuple[str, int], Tensor]

    @classmethod
    def of(cls, plan: Plan, inputs: Mapping[str, Tensor], weights: Values, given: Values) -> Memory:
        """What the plan reads, and poison where its results go."""
        sizes = sizes_of(plan, inputs)
        arrays: dict[tuple[str, int], Tensor] = {}
        for buffer in plan.by_name.values():
            if buffer.kind == "weight":
                arrays[buffer.name, 0] = _fenced(_packed(buffer, weights[buffer.name]))
            elif buffer.kind in ("input", "state") or buffer.name in given:
                value = inputs[buffer.name] if buffer.kind == "input" else given[buffer.name]
                for number, each in enumerate(_parts(value)):
                    arrays[buffer.name, number] = _fenced(_bytes(each))
            elif buffer.kind in ("arena", "output"):
                count = math.prod(sizes.get(str(d), d) for d in buffer.shape)  # type: ignore[misc]
                empty = torch.full((stored_bytes(buffer.dtype, count),), POISON, dtype=torch.uint8)
                arrays[buffer.name, 0] = _fenced(empty)
        return cls(arrays)

    def address(self, argument: LaunchArgument) -> int:
        array = self.arrays[argument.buffer, argument.array]
        assert argument.offset <= array.numel() - 2 * FENCE, f"{argument} is outside"
        return array.data_ptr() + FENCE + argument.offset

    def read(self, buffer: Buffer, number: int = 0, dtype: torch.dtype | None = None) -> Tensor:
        """What an array holds, [rows, ...] for the numbers of a buffer."""
        array = self.arrays[buffer.name, number][FENCE:-FENCE]
        if dtype is not None:
            return array.view(dtype)
        return array.view(TORCH_DTYPES[buffer.dtype]).view(-1, *map(int, buffer.shape[1:]))

    def check_fences(self) -> None:
        for name, array in self.arrays.items():
            for fence in (array[:FENCE], array[-FENCE:]):
                assert bool((fence == POISON).all()), f"something was written beyond {name}"


def run(
    plan: Plan, calls: Mapping[str, Emit], inputs: Mapping[str, Tensor], weights: Values,
    given: Values,
) -> Memory:  # fmt: skip
    """Carries out the kernels of a plan; returns its memory.

    Args:
        calls: how each kernel is launched.
        inputs: the step's arrays, see `rows_of_one`.
        weights: of the plan, by buffer.
        given: rows that no instruction makes, and states, by buffer.
    """
    memory, operands = Memory.of(plan, inputs, weights, given), Operands(plan)
    sizes = sizes_of(plan, inputs)
    for group in plan.kernels:
        work = Work(plan, group)
        before = {name: array.clone() for name, array in memory.arrays.items()}
        for call in _with_workspace(memory, list(calls[work.kernel](operands, work))):
            launch(memory, call, sizes)
        written = {WORKSPACE, *work.writes, *work.mutated}
        for (name, number), array in memory.arrays.items():
            if name not in written:
                assert torch.equal(array, before[name, number]), f"{name} was written"
    memory.check_fences()
    return memory


def expected(
    plan: Plan, inputs: Mapping[str, Tensor], weights: Values, given: Values
) -> dict[str, Tensor]:
    """The results by the references of the primitives, by buffer."""
    copies = {name: _copy(value) for name, value in given.items()}
    steps = interpret(plan, lambda buffer: weights[buffer.name], inputs, copies)
    return {name: value for step in steps for name, value in step.items()}  # type: ignore[misc]


def launch(memory: Memory, call: Call, sizes: Mapping[str, int]) -> None:
    """One launch: the first of its kernels that fits the step, or nothing."""
    choices = (c for c in call.choices if not c.size or sizes[c.size] <= c.most)
    choice = next(choices, None)
    if choice is None:
        return
    arguments: dict[str, tuple[str, Any]] = {}
    for name, each in call.arguments.items():
        if isinstance(each, Pointer):
            arguments[name] = each.type, memory.address(each.argument)
        else:
            arguments[name] = each.type, sizes[each.symbol]
    function = interpreter.kernel(choice.function)
    names = [leaf.name for leaf in leaves(function)]
    declared = [name for name in names if name in arguments]
    assert declared == list(arguments), f"{choice.function} takes {declared}"
    given = {*arguments, *choice.constants}
    assert {*names} - {*defaults(function)} <= given <= {*names}, choice
    x, y, z = (extent.of(sizes) for extent in choice.grid)
    interpreter.launch(function, (x, y, z), arguments, choice.constants)


def sizes_of(plan: Plan, inputs: Mapping[str, Tensor]) -> dict[str, int]:
    """The sizes of a step by symbol."""
    sizes = {
        str(dim): size
        for array in plan.spec.inputs
        for dim, size in zip(array.shape, inputs[array.name].shape, strict=True)
    }
    begins, ends, before = inputs["spans"].unbind(-1)
    rows = ends - begins
    return sizes | {MOST_ROWS: int(rows.max()), MOST_KEYS: int((rows + before).max())}


def _with_workspace(memory: Memory, calls: list[Call]) -> Iterator[Call]:
    nbytes = max(call.workspace_bytes for call in calls)
    poison = torch.full((nbytes,), POISON, dtype=torch.uint8)
    memory.arrays[WORKSPACE, 0] = _fenced(poison)
    yield from calls
    memory.check_fences()


def _packed(weight: Buffer, value: Value) -> Tensor:
    """The bytes of a weight in its file."""
    if is_stack(weight):
        matrices = (_packed(matrix_of(weight, i), each) for i, each in enumerate(_matrices(value)))
        return torch.cat([_filled(each, matrix_bytes(weight)) for each in matrices])

    class Integers:
        def matrix(self, name: str) -> Scaled:
            assert isinstance(value, Scaled)
            return value

    plain = replace(weight, sources=())
    return torch.cat([_bytes(p) for p in pieces_of(plain, lambda _: value, Integers())])  # type: ignore[arg-type, return-value]


def _matrices(stack: Value) -> list[Value]:
    return [stack[index] for index in range(stack.shape[0])]


def _filled(data: Tensor, nbytes: int) -> Tensor:
    """Bytes, and poison behind them."""
    return torch.cat([data, torch.full((nbytes - data.numel(),), POISON, dtype=torch.uint8)])


def _parts(value: Value) -> tuple[Tensor, ...]:
    return (value.values, value.scales) if isinstance(value, Scaled) else (value,)


def _copy(value: Value) -> Value:
    if isinstance(value, Scaled):
        return Scaled(value.values.clone(), value.multipliers, value.scales.clone())
    return value.clone()


def _bytes(x: Tensor) -> Tensor:
    return x.contiguous().view(-1).view(torch.uint8)


def _fenced(data: Tensor) -> Tensor:
    fence = torch.full((FENCE,), POISON, dtype=torch.uint8)
    return torch.cat([fence, data, fence])
