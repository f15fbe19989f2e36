"""The calls of the kernels of a mixture of experts; see calls.py."""

from __future__ import annotations

from ingot.artifact.plan import Buffer, Instruction
from ingot.targets.cpu.call import KernelCall
from ingot.targets.cpu.call_parts import (
    Arguments,
    Constants,
    activation_of,
    boolean,
    expect,
    packing,
    result,
    rounded_result,
    scalars_of,
)
from ingot.targets.cpu.kernel_table import QUANTIZED
from ingot.targets.cpu.operands import CPP_TYPES, Operands
from ingot.targets.cpu.work import CpuWork

CLAMPED = "clamped"
SCORINGS = {"softmax": "SoftmaxScores", "sigmoid": "SigmoidScores"}
GROUP_SCORES = ("max", "top2")


def route(operands: Operands, work: CpuWork) -> KernelCall:
    i = work.member("route")
    logits, bias = operands.of(i, "logits"), operands.optional(i, "bias")
    attrs, experts = i.attrs, logits.columns
    picks, groups, kept = (int(attrs[name]) for name in ("top_k", "groups", "kept_groups"))
    expect(i, attrs["scoring"] in SCORINGS, f"the scoring {attrs['scoring']!r} is unknown")
    expect(i, attrs["group_score"] in GROUP_SCORES, f"scores {attrs['group_score']!r} of groups")
    even = experts % groups == 0 and picks <= kept * (experts // groups)
    expect(i, picks > 0 and even, f"{picks} of {experts} experts, in {kept} of {groups} groups")
    _expect_floats(i, bias)
    rule = (
        SCORINGS[str(attrs["scoring"])],
        *(experts, picks, groups, kept),
        "true" if attrs["group_score"] == "top2" else "false",
        boolean(i, "normalise"),
    )
    router = f"Router<{', '.join(map(str, rule))}>"
    arguments = (
        operands.rows(logits),
        operands.weight(bias),
        *scalars_of(i, "eps", "scale"),
        result(operands, i),
    )
    return KernelCall("route", (router, experts, CPP_TYPES[logits.dtype]), arguments)


def expert_gate(operands: Operands, work: CpuWork) -> KernelCall:
    """The first product of experts, and its gates; with `_quantize`, also their rounding."""
    i = work.member("expert_gate")
    weight = operands.of(i, "weight")
    inner = int(weight.shape[1]) // 2
    prefix, types, sizes, arguments = _product(operands, i, weight, inner)
    arguments = (*arguments, *scalars_of(i, "limit"))
    gate = _gate_of(i)
    if work.has("cast"):
        block, results = rounded_result(operands, work.member("cast"))
        constants = (block, gate, *types, *sizes)
        return KernelCall(f"{prefix}expert_gate_quantize", constants, (*arguments, *results))
    out = CPP_TYPES[operands.of(i, "out").dtype]
    ends = (*types, *sizes, out) if prefix else (*types, out, *sizes)
    return KernelCall(f"{prefix}expert_gate", (gate, *ends), (*arguments, result(operands, i)))


def expert_sum(operands: Operands, work: CpuWork) -> KernelCall:
    i = work.member("expert_sum")
    weight, out = operands.of(i, "weight"), operands.of(i, "out")
    expect(i, out.dtype == "float32", f"the result is {out.dtype}, not float32")
    prefix, types, sizes, arguments = _product(operands, i, weight, int(weight.shape[1]))
    return KernelCall(f"{prefix}expert_sum", (*types, *sizes), (*arguments, result(operands, i)))


def _product(
    operands: Operands, i: Instruction, weight: Buffer, columns: int
) -> tuple[str, Constants, Constants, Arguments]:
    """Parts that both products share: prefix, format, sizes, and inputs."""
    x, shares, bias = (operands.of(i, "x"), operands.of(i, "shares"), operands.optional(i, "bias"))
    experts, rows, inputs = map(int, weight.shape)
    expect(i, rows % 2 == 0, f"matrices of {rows} rows have no halves")
    _expect_floats(i, bias)
    assert weight.row_stride, "stacks have their places"
    sizes = (experts, int(i.attrs["top_k"]), inputs, columns, weight.row_stride)
    read = (operands.rows(shares), operands.weight(weight), operands.weight(bias))
    if not weight.format.is_scaled:
        expect(i, x.dtype == weight.dtype, f"x is {x.dtype} and the weight {weight.dtype}")
        return "", (CPP_TYPES[x.dtype],), sizes, (operands.rows(x), *read)
    same = x.format.is_scaled and x.format.block == weight.format.block
    expect(i, same, f"x is {x.format} and the weight {weight.format}")
    rows_of_x = (operands.rows(x), operands.scales(x))
    return QUANTIZED, packing(i, weight), sizes, (*rows_of_x, *read)


def _gate_of(i: Instruction) -> str:
    if i.attrs["kind"] == CLAMPED:
        return "ClampedGate"
    return f"{'Alone' if i.attrs['plain'] else 'Gated'}<{activation_of(i)}>"


def _expect_floats(i: Instruction, bias: Buffer | None) -> None:
    expect(i, bias is None or bias.dtype == "float32", "the bias is not float32")
