"""Diagnosis of a failed export: what in a module depends on the number of tokens, and where."""

from __future__ import annotations

import linecache
import sys
import textwrap
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    GuardOnDataDependentSymNode,
    ShapeEnv,
    StatelessSymbolicContext,
)
from torch.utils._python_dispatch import TorchDispatchMode

# Far apart, and around the sizes of chunks and tables: what holds for all of these holds for any.
TRIED = [2**power + near for power in range(2, 21) for near in (-1, 0, 1)]
LINE_SHOWN = 80
READS_VALUES = (GuardOnDataDependentSymNode, DataDependentOutputException)


def fault_of(module: nn.Module, num_tokens: int) -> str:
    """The first call or line that takes not every number of tokens; "" where none is found.

    Runs the module on tensors without values, whose number of tokens is a symbol.

    Args:
        module: a plain module on the meta device.
        num_tokens: the number that the symbol stands for where one is asked for.
    """
    shapes = ShapeEnv()
    fake = FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True)
    sizes: Any = StatelessSymbolicContext([DimDynamic.STATIC, DimDynamic.DYNAMIC])
    example = torch.zeros(1, num_tokens, dtype=torch.int64, device="meta")
    ids = fake.from_tensor(example, symbolic_context=sizes)
    calls = Calls()
    shapes.guards = guards = Guards(module, calls)
    try:
        with torch.no_grad(), enable_python_dispatcher(), fake, calls:
            module(ids, ids)
    except Exception as error:  # of whatever sort: it is what stops the export, too
        return guards.found or where_raised(module, error)
    return guards.found


def described(error: Exception) -> str:
    """An error in a line, without the advice of PyTorch."""
    first = "".join(str(error).strip().splitlines()[:1])
    return f"{type(error).__name__}: {first.partition(' For more information')[0]}"


class Calls(TorchDispatchMode):
    """Knows the operator that runs, "" between two."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.running = ""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.running = str(func).removesuffix(".default")
        result = func(*args, **(kwargs or {}))
        self.running = ""
        return result


class Guards(list[Any]):
    """Guards on sizes. Notes where the first is made that some number of tokens violates."""

    def __init__(self, module: nn.Module, calls: Calls) -> None:
        super().__init__()
        self.module, self.calls, self.found = module, calls, ""

    def append(self, guard: Any) -> None:
        super().append(guard)
        if self.found or all(met := [meets(guard.expr, number) for number in TRIED]):
            return
        place = next(places(self.module, frames()), ModulePlace("the model itself", ""))
        operator = self.calls.running
        if operator:
            what = what_is_taken(guard.expr, met)
            self.found = f"{operator} at {place.module}, as it is traced, {what}"
        else:
            self.found = f"the code of {place.module} depends on the number of tokens: {place.line}"


def meets(condition: Any, tokens: int) -> bool:
    """Returns whether a condition on one symbol holds for a number of tokens; else True."""
    symbols = condition.free_symbols
    return len(symbols) != 1 or bool(condition.subs(*symbols, tokens))


def what_is_taken(condition: Any, met: list[bool]) -> str:
    """Describes the numbers of tokens that meet a condition, by whether those tried do."""
    first = met.index(False)
    if not first or any(met[first:]):
        return "fixes the number of tokens"
    between = range(TRIED[first - 1], TRIED[first] + 1)
    most = between[bisect_left(between, True, key=lambda number: not meets(condition, number))] - 1
    return f"takes at most {most} tokens"


@dataclass(frozen=True, slots=True)
class ModulePlace:
    """A module by its path, and the line of its code."""

    module: str
    line: str


def places(module: nn.Module, stack: Iterator[tuple[FrameType, int]]) -> Iterator[ModulePlace]:
    """The places in code of a module's parts, for frames and the instruction that each is at."""
    paths = {id(part): path for path, part in module.named_modules()}
    line = ""
    for frame, instruction in stack:
        file = frame.f_code.co_filename
        if not line and "/torch/" not in file and file != __file__:
            line = line_of(frame.f_code, instruction)
        part = frame.f_locals.get("self")
        if isinstance(part, nn.Module) and id(part) in paths:
            yield ModulePlace(paths[id(part)] or "the model itself", line)


def line_of(code: CodeType, instruction: int) -> str:
    """The text of what an instruction is of: a call, a condition, or the first line of a loop."""
    first, last, _, _ = list(code.co_positions())[instruction // 2]
    text = ""
    for number in range(first or 1, (last or first or 1) + 1):
        text += linecache.getline(code.co_filename, number)
        if text.rstrip().endswith(":"):
            break
    return textwrap.shorten(text, LINE_SHOWN, placeholder=" ...")


def frames() -> Iterator[tuple[FrameType, int]]:
    """The frames that run, from the innermost."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame, frame.f_lasti
        frame = frame.f_back


def where_raised(module: nn.Module, error: Exception) -> str:
    """An error that a module's code raised, and where."""
    trace, stack = error.__traceback__, list[tuple[FrameType, int]]()
    while trace is not None:
        stack.append((trace.tb_frame, trace.tb_lasti))
        trace = trace.tb_next
    place = next(places(module, iter(reversed(stack))), ModulePlace("the model itself", ""))
    if isinstance(error, READS_VALUES):
        return f"the code of {place.module} depends on values of tensors: {place.line}"
    return f"{described(error)}, at {place.module}: {place.line}"
