"""The calls of mixers that keep one record of each sequence."""

from __future__ import annotations

from ingot.artifact.plan import Buffer, Instruction
from ingot.targets.cpu.call import KernelCall
from ingot.targets.cpu.call_parts import expect, result
from ingot.targets.cpu.limits import check_matrices
from ingot.targets.cpu.operands import Operands
from ingot.targets.cpu.work import CpuWork

NO_ROWS = "Rows<const float>{}"


def token_shift(operands: Operands, work: CpuWork) -> KernelCall:
    i = work.member("token_shift")
    x = operands.of(i, "x")
    arguments = (operands.rows(x), *_record(operands, i), result(operands, i))
    return KernelCall("token_shift", (x.columns,), arguments)


def short_conv(operands: Operands, work: CpuWork) -> KernelCall:
    i = work.member("short_conv")
    x, weight = operands.of(i, "x"), operands.of(i, "weight")
    kind = "Silu" if i.attrs["activates"] else "Identity"
    vectors = (_vector(operands, i, name) for name in ("weight", "bias"))
    arguments = (operands.rows(x), *vectors, *_record(operands, i), result(operands, i))
    return KernelCall("short_conv", (x.columns, weight.shape[0], kind), arguments)


def recurrence(operands: Operands, work: CpuWork) -> KernelCall:
    i = work.member("recurrence")
    k, v, decay = (operands.of(i, name) for name in ("k", "v", "decay"))
    (_, groups, size), (_, heads, width) = k.shape, v.shape
    check_matrices(operands.of(i, "state"), int(size), int(width))
    rows = (_float_rows(operands, i, name) for name in ("q", "k", "v", "decay", "beta", "a", "b"))
    given = f"RecurrenceRows{{{', '.join((*rows, _vector(operands, i, 'skip')))}}}"
    by_key = "true" if len(decay.shape) == 3 else "false"
    constants = (f"Rule::{i.attrs['rule']}", groups, heads, size, width, by_key)
    return KernelCall("recurrence", constants, (given, *_record(operands, i), result(operands, i)))


def selective_scan(operands: Operands, work: CpuWork) -> KernelCall:
    i = work.member("selective_scan")
    x, b = operands.of(i, "x"), operands.of(i, "b")
    check_matrices(operands.of(i, "state"), b.columns, x.columns)
    rows = (_float_rows(operands, i, name) for name in ("x", "dt", "b", "c"))
    vectors = (_vector(operands, i, name) for name in ("rate", "skip"))
    given = f"ScanRows{{{', '.join((*rows, *vectors))}}}"
    arguments = (given, *_record(operands, i), result(operands, i))
    return KernelCall("selective_scan", (x.columns, b.columns), arguments)


def _record(operands: Operands, i: Instruction) -> tuple[str, str]:
    """The sequences of the step, and the state with their records."""
    spans, slots = (operands.input(operands.of(i, name).name) for name in ("spans", "records"))
    state = next(b for b in map(operands.plan.buffer, i.inputs.values()) if b.kind == "state")
    expect(i, state.dtype == "float32", f"records in {state.dtype}")
    return f"Records{{step.num_tokens, step.num_seqs, {spans}, {slots}}}", operands.state(state)


def _float_rows(operands: Operands, i: Instruction, name: str) -> str:
    buffer = operands.optional(i, name)
    if buffer is None:
        return NO_ROWS
    _expect_float(i, name, buffer)
    return operands.rows(buffer)


def _vector(operands: Operands, i: Instruction, name: str) -> str:
    buffer = operands.optional(i, name)
    if buffer is not None:
        _expect_float(i, name, buffer)
    return operands.weight(buffer)


def _expect_float(i: Instruction, name: str, buffer: Buffer) -> None:
    expect(i, buffer.dtype == "float32", f"{name} is {buffer.dtype}, not float32")
