"""The groups of a CPU: what a thread does with values while it still has them in its cache."""

from __future__ import annotations

from ingot.artifact.plan import Instruction
from ingot.artifact.traits import traits_of
from ingot.targets.cpu.weights import PANEL_ROWS
from ingot.targets.grouping import Flow, Found, Rule
from ingot.targets.rules import (
    gates,
    group_heads,
    group_residuals,
    group_soft_caps,
    group_sums,
    head_products,
    is_of_heads,
)

# Columns that one thread computes together, in any format: whole panels, as kernels assert.
UNIT_COLUMNS = 64
LARGEST_BLOCK = 2 * UNIT_COLUMNS  # columns of results whose sums a thread holds


def group_head_products(flow: Flow, index: int) -> Found | str | None:
    """The product that makes queries, keys and values, with their norms, rotations and writes."""
    return head_products(flow, index, UNIT_COLUMNS)


def group_gates(flow: Flow, index: int) -> Found | str | None:
    """The product of a gated MLP, with the gate of its two halves."""
    return gates(flow, index, UNIT_COLUMNS)


def group_activations(flow: Flow, index: int) -> Found | str | None:
    """A product, with the activation of its results."""
    activation = flow.instructions[index]
    product = (
        flow.maker(activation.inputs["x"], "linear") if activation.op == "activation" else None
    )
    if product is None:
        return None
    if not flow.is_read_only_by(product, (index,)):
        return "something else reads the product"
    return Found("activated_linear", (product, index))


def group_casts(flow: Flow, index: int) -> Found | str | None:
    """A layer norm, with its results in the type of the product that reads them."""
    cast = flow.instructions[index]
    norm = flow.maker(cast.inputs["x"], "layer_norm") if cast.op == "cast" else None
    if norm is None or flow.plan.buffer(cast.outputs["out"]).format.is_scaled:
        return None
    return with_cast(flow, norm, index, "layer_norm_cast")


def with_cast(flow: Flow, norm: int, cast: int, kernel: str) -> Found | str:
    """A layer norm and a cast of its results, which are kept where others read them, too."""
    (out,) = flow.instructions[norm].outputs.values()
    if is_of_heads(flow, out):
        return "the norm is one of heads"
    if flow.is_read_only_by(norm, (cast,)):
        return Found(kernel, (norm, cast))
    if min(flow.readers(norm)) != cast:
        return "something else reads the norm before it is cast"
    return Found(kernel, (norm, cast), stores=(out,))


def group_rounding(flow: Flow, index: int) -> Found | str | None:
    """A norm, an activated product or attention, with the rounding of its results to int8."""
    cast = flow.instructions[index]
    (out,) = cast.outputs.values() if cast.op == "cast" else ("",)
    if not out or not flow.plan.buffer(out).format.is_scaled:
        return None
    maker, block = flow.below(cast.inputs["x"]), flow.plan.buffer(out).format.block
    if maker is None or flow.kernel(maker) not in ROUNDED:
        return None
    if not flow.covers((cast.inputs["x"],)):
        return "a part of the results is rounded"
    reason = ROUNDED[flow.kernel(maker)](flow, flow.instructions[maker], block)
    if reason:
        return reason
    if flow.kernel(maker) == "layer_norm":
        return with_cast(flow, maker, index, "layer_norm_quantize")
    if not flow.is_read_only_by(maker, (index,)):
        return "something else reads what is rounded"
    return Found(f"{flow.kernel(maker)}_quantize", (maker, index))


def any_block(flow: Flow, norm: Instruction, block: int) -> str:
    return "the norm is one of heads" if is_of_heads(flow, norm.outputs["out"]) else ""


def blocks_of_heads(flow: Flow, attention: Instruction, block: int) -> str:
    size = int(flow.plan.buffer(attention.outputs["out"]).shape[-1])
    return f"blocks of {block} do not divide heads of {size}" if size % block else ""


def blocks_of_units(flow: Flow, activated: Instruction, block: int) -> str:
    product = flow.below(next(iter(activated.inputs.values())))
    assert product is not None, "the kernel has a product"
    linear = flow.instructions[product]
    if not flow.plan.buffer(linear.inputs[traits_of(linear).matrix]).format.is_scaled:
        return "its weights are not integers"
    columns = max(block, UNIT_COLUMNS)
    size = flow.plan.buffer(activated.outputs["out"]).columns
    whole = columns % block == 0 and size % columns == 0 and columns % UNIT_COLUMNS == 0
    if block > LARGEST_BLOCK or not whole:
        return f"blocks of {block} do not suit units of {UNIT_COLUMNS} of {size} columns"
    return ""


def blocks_of_experts(flow: Flow, gate: Instruction, block: int) -> str:
    weight = flow.plan.buffer(gate.inputs[traits_of(gate).matrix])
    if not weight.format.is_scaled:
        return "its weights are not integers"
    if block > LARGEST_BLOCK or max(block, PANEL_ROWS) % min(block, PANEL_ROWS):
        return f"blocks of {block} do not suit panels of {PANEL_ROWS} columns"
    half = int(weight.shape[1]) // 2
    if gate.attrs["plain"] and half % block:
        return f"blocks of {block} do not suit halves of {half} columns"
    return ""


# For each kernel: why its results cannot be rounded in blocks of that size; empty if they can.
ROUNDED = {
    "rms_norm": any_block,
    "layer_norm": any_block,
    "paged_attention": blocks_of_heads,
    "segment_attention": blocks_of_heads,
    "gated_linear": blocks_of_units,
    "activated_linear": blocks_of_units,
    "expert_gate": blocks_of_experts,
}

RULES: tuple[Rule, ...] = (
    group_heads,
    group_head_products,
    group_gates,
    group_activations,
    group_residuals,
    group_soft_caps,
    group_sums,
    group_casts,
    group_rounding,
)
