"""The groups of a CPU: what a thread does with values while it still has them in its cache."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from ingot.artifact.plan import Instruction
from ingot.artifact.traits import traits_of
from ingot.targets.grouping import Flow, Found, Rule

# Columns that one thread computes together, in any format: whole panels, as kernels assert.
UNIT_COLUMNS = 64
LARGEST_BLOCK = 2 * UNIT_COLUMNS  # columns of results whose sums a thread holds


def group_heads(flow: Flow, index: int) -> Found | str | None:
    """A kv_write, with the norms and rotations of queries and keys before it.

    Queries are turned with keys, so that the thread that turns a KV head also turns its queries.
    """
    write = flow.instructions[index]
    if write.op != "kv_write" or flow.maker(write.inputs["k"], "rope") is None:
        return None
    if len({flow.plan.buffer(write.inputs[name]).shape for name in ("k", "v")}) > 1:
        return "keys and values differ in shape"
    readers = [i for i in flow.users(write.inputs["k_cache"]) if i != index]
    if len(readers) != 1:
        return f"{len(readers)} instructions read the cache"
    k, q = turning(flow, write.inputs["k"], index), turning(flow, read_rows(flow, readers[0]), -1)
    if k is None or q is None:
        return "queries or keys are read by others, or queries are not turned"
    for what in ("table", "interleaved", "eps", "offset", "norm"):
        if q.facts[what] != k.facts[what]:
            return f"queries and keys differ in {what}"
    return Found("rope_kv_write", (*q.members, *k.members, index))


class Turning:
    """A rotation, and the norm before it if nothing else reads that."""

    def __init__(self, flow: Flow, rope: int, norm: int | None) -> None:
        self.members = (rope,) if norm is None else (norm, rope)
        turn = flow.instructions[rope]
        attrs = {} if norm is None else flow.instructions[norm].attrs
        self.source = (turn if norm is None else flow.instructions[norm]).inputs["x"]
        self.facts = {
            "table": turn.inputs["table"],
            "interleaved": turn.attrs["interleaved"],
            "eps": attrs.get("eps"),
            "offset": attrs.get("offset"),
            "norm": norm is not None,
        }


def turning(flow: Flow, name: str, reader: int) -> Turning | None:
    """What turns the heads in a buffer, if only that reader needs them; -1 for any one reader."""
    rope = flow.maker(name, "rope")
    if rope is None or len(flow.readers(rope)) != 1 or reader not in (-1, *flow.readers(rope)):
        return None
    norm = flow.maker(flow.instructions[rope].inputs["x"], "rms_norm")
    alone = norm is not None and flow.is_read_only_by(norm, (rope,))
    return Turning(flow, rope, norm if alone else None)


def read_rows(flow: Flow, index: int) -> str:
    """The queries that attention reads."""
    return flow.instructions[index].inputs["q"]


def group_head_products(flow: Flow, index: int) -> Found | str | None:
    """The product that makes queries, keys and values, with their norms, rotations and writes."""
    if flow.instructions[index].op != "kv_write" or flow.kernel(index) != "rope_kv_write":
        return None
    members = flow.members(index)
    sources = [name for i in members for name in heads_read(flow, i, members)]
    product = flow.maker(sources[0], "linear")
    if product is None or any(flow.maker(name) != product for name in sources):
        return "queries, keys and values are made by several products"
    size = int(flow.plan.buffer(sources[0]).shape[-1])
    if size % UNIT_COLUMNS:
        return f"head size {size} is no multiple of {UNIT_COLUMNS} columns"
    if not covers(flow, sorted(sources, key=lambda n: flow.plan.buffer(n).offset)):
        return "queries, keys and values are not all that the product makes"
    if not flow.is_read_only_by(product, members):
        return "something else reads the product"
    return Found("linear_rope_kv_write", (product, index))


def heads_read(flow: Flow, index: int, members: Sequence[int]) -> list[str]:
    """The heads [N, H, D] that an instruction reads and that no member makes."""
    instruction = flow.instructions[index]
    names = (instruction.inputs.get(argument) for argument in ("x", "k", "v"))
    return [name for name in names if name is not None and flow.maker(name) not in members]


def covers(flow: Flow, names: Sequence[str]) -> bool:
    """Whether these views, one after the other, cover all columns of the buffer under them."""
    views = [flow.plan.buffer(name) for name in names]
    begins = accumulate((view.columns for view in views), initial=0)
    whole = flow.plan.root(names[0]).columns
    return [*(view.offset for view in views), whole] == list(begins)


def group_gates(flow: Flow, index: int) -> Found | str | None:
    """The product of a gated MLP, with the gate of its two halves."""
    gate = flow.instructions[index]
    if gate.op != "gate" or flow.maker(gate.inputs["gate"], "linear") is None:
        return None
    product = flow.maker(gate.inputs["gate"])
    if product is None or flow.maker(gate.inputs["up"]) != product:
        return "the halves are products of their own"
    if not covers(flow, (gate.inputs["gate"], gate.inputs["up"])):
        return "gate and up are not the halves of the product"
    size = flow.plan.buffer(gate.inputs["gate"]).columns
    if size % UNIT_COLUMNS:
        return f"{size} columns of each half are no multiple of {UNIT_COLUMNS}"
    if not flow.is_read_only_by(product, (index,)):
        return "something else reads the product"
    return Found("gated_linear", (product, index))


def group_residuals(flow: Flow, index: int) -> Found | str | None:
    """A product, with the residual stream that is added to it."""
    add = flow.instructions[index]
    if add.op != "add":
        return None
    operands = (add.inputs["x"], add.inputs["y"])
    pairs = [(mine, other) for mine, other in (operands, operands[::-1]) if is_product(flow, mine)]
    if not pairs:
        return None
    for mine, other in pairs:
        product = flow.maker(mine)
        assert product is not None
        alone = flow.is_read_only_by(product, (index,)) and len(flow.members(product)) == 1
        if mine != other and alone and flow.plan.buffer(other).dtype == "float32":
            return Found("linear_add", (product, index))
    return "something else reads the product, or the residual is not float32"


def is_product(flow: Flow, name: str) -> bool:
    """Whether a buffer is, as a whole, the result of a product."""
    index = flow.maker(name, "linear")
    return index is not None and name in flow.instructions[index].outputs.values()


def group_soft_caps(flow: Flow, index: int) -> Found | str | None:
    """A product, with the soft cap of its results."""
    cap = flow.instructions[index]
    if cap.op != "soft_cap" or not is_product(flow, cap.inputs["x"]):
        return None
    product = flow.maker(cap.inputs["x"])
    if product is None or not flow.is_read_only_by(product, (index,)):
        return "something else reads the product"
    return Found("linear_soft_cap", (product, index))


def group_sums(flow: Flow, index: int) -> Found | str | None:
    """A sum that belongs to no product, with the first norm of it."""
    add = flow.instructions[index]
    if add.op != "add" or len(flow.members(index)) > 1:
        return None
    norms = [i for i in flow.readers(index) if flow.instructions[i].op == "rms_norm"]
    whole = [i for i in norms if flow.instructions[i].inputs["x"] in add.outputs.values()]
    if not whole:
        return None
    if min(flow.readers(index)) != whole[0]:
        return "something else reads the sum before the norm does"
    return Found("add_rms_norm", (index, whole[0]), stores=tuple(add.outputs.values()))


def group_rounding(flow: Flow, index: int) -> Found | str | None:
    """A norm, a gated product or attention, with the rounding of its results to int8."""
    cast = flow.instructions[index]
    (out,) = cast.outputs.values() if cast.op == "cast" else ("",)
    if not out or not flow.plan.buffer(out).format.is_scaled:
        return None
    maker, block = flow.maker(cast.inputs["x"]), flow.plan.buffer(out).format.block
    if maker is None or flow.kernel(maker) not in ROUNDED:
        return None
    reason = ROUNDED[flow.kernel(maker)](flow, flow.instructions[maker], block)
    if reason:
        return reason
    if not flow.is_read_only_by(maker, (index,)):
        return "something else reads what is rounded"
    return Found(f"{flow.kernel(maker)}_quantize", (maker, index))


def any_block(flow: Flow, norm: Instruction, block: int) -> str:
    heads = len(flow.plan.buffer(norm.outputs["out"]).shape) > 2
    return "the norm is one of heads" if heads else ""


def blocks_of_heads(flow: Flow, attention: Instruction, block: int) -> str:
    size = int(flow.plan.buffer(attention.outputs["out"]).shape[-1])
    return f"blocks of {block} do not divide heads of {size}" if size % block else ""


def blocks_of_units(flow: Flow, gate: Instruction, block: int) -> str:
    product = flow.maker(gate.inputs["gate"])
    assert product is not None
    linear = flow.instructions[product]
    if not flow.plan.buffer(linear.inputs[traits_of(linear).matrix]).format.is_scaled:
        return "its weights are not integers"
    columns = max(block, UNIT_COLUMNS)
    size = flow.plan.buffer(gate.outputs["out"]).columns
    whole = columns % block == 0 and size % columns == 0 and columns % UNIT_COLUMNS == 0
    if block > LARGEST_BLOCK or not whole:
        return f"blocks of {block} do not suit units of {UNIT_COLUMNS} of {size} columns"
    return ""


# For each kernel: why its results cannot be rounded in blocks of that size; empty if they can.
ROUNDED = {
    "rms_norm": any_block,
    "paged_attention": blocks_of_heads,
    "gated_linear": blocks_of_units,
}

RULES: tuple[Rule, ...] = (
    group_heads,
    group_head_products,
    group_gates,
    group_residuals,
    group_soft_caps,
    group_sums,
    group_rounding,
)
