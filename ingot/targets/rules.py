"""Grouping rules that targets share; `ingot.targets.grouping` says what a rule answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ingot.targets.grouping import Flow, Found


@dataclass(frozen=True)
class Turning:
    """A rotation of heads, and the norm before it if nothing else reads that."""

    members: tuple[int, ...]
    source: str
    facts: Mapping[str, object]


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
    q, k = turnings(flow, index)
    if k is None or q is None:
        return "queries or keys are read by others, or queries are not turned"
    for what, fact in q.facts.items():
        if fact != k.facts[what]:
            return f"queries and keys differ in {what}"
    return Found("rope_kv_write", (*q.members, *k.members, index))


def turnings(flow: Flow, write: int) -> tuple[Turning | None, Turning | None]:
    """Finds what rotates the queries and the keys of a kv_write, if it feeds nothing else."""
    inputs = flow.instructions[write].inputs
    reader = next(i for i in flow.users(inputs["k_cache"]) if i != write)
    queries = flow.instructions[reader].inputs["q"]
    return turning(flow, queries, reader), turning(flow, inputs["k"], write)


def turning(flow: Flow, name: str, reader: int) -> Turning | None:
    """Finds the instructions that rotate the heads in a buffer, if that reader alone needs them."""
    rope = flow.maker(name, "rope")
    if rope is None or flow.readers(rope) != [reader]:
        return None
    turn = flow.instructions[rope]
    facts = {"table": turn.inputs["table"], "interleaved": turn.attrs["interleaved"]}
    norm = flow.maker(turn.inputs["x"], "rms_norm")
    if norm is None or has_own_weights(flow, norm) or not flow.is_read_only_by(norm, (rope,)):
        return Turning((rope,), turn.inputs["x"], facts | {"eps": None, "offset": None})
    before = flow.instructions[norm]
    constants = {what: before.attrs[what] for what in ("eps", "offset")}
    return Turning((norm, rope), before.inputs["x"], facts | constants)


def has_own_weights(flow: Flow, norm: int) -> bool:
    """Returns whether each head of a norm has a part of the weight, rather than all of it."""
    weight, x = (flow.plan.buffer(flow.instructions[norm].inputs[n]) for n in ("weight", "x"))
    return weight.shape != (x.shape[-1],)


def head_products(flow: Flow, index: int, unit: int) -> Found | str | None:
    """The product that makes queries, keys and values, with their norms, rotations and writes.

    Heads must be whole units of so many columns.
    """
    write = flow.instructions[index]
    if write.op != "kv_write" or flow.kernel(index) != "rope_kv_write":
        return None
    q, k = turnings(flow, index)
    assert q is not None and k is not None, "the kernel turns both"
    sources = (q.source, k.source, write.inputs["v"])
    makers = {flow.below(name) for name in sources}
    product = flow.below(write.inputs["v"])
    if product is None or flow.instructions[product].op != "linear" or len(makers) > 1:
        return "queries, keys and values are made by several products"
    size = int(flow.plan.buffer(k.source).shape[-1])
    if size % unit:
        return f"head size {size} is no multiple of {unit} columns"
    if not flow.covers(sources):
        return "the product makes more than queries, keys and values, or in another order"
    if not flow.is_read_only_by(product, flow.members(index)):
        return "something else reads the product"
    return Found("linear_rope_kv_write", (product, index))


def gates(flow: Flow, index: int, unit: int) -> Found | str | None:
    """The product of a gated MLP, with the gate of its two halves, whole units of columns each."""
    gate = flow.instructions[index]
    product = flow.below(gate.inputs["gate"]) if gate.op == "gate" else None
    if product is None or flow.instructions[product].op != "linear":
        return None
    if flow.below(gate.inputs["up"]) != product:
        return "the halves are products of their own"
    if not flow.covers((gate.inputs["gate"], gate.inputs["up"])):
        return "gate and up are not the halves of the product"
    size = flow.plan.buffer(gate.inputs["gate"]).columns
    if size % unit:
        return f"{size} columns of each half are no multiple of {unit}"
    if not flow.is_read_only_by(product, (index,)):
        return "something else reads the product"
    return Found("gated_linear", (product, index))


def group_residuals(flow: Flow, index: int) -> Found | str | None:
    """A product, with the residual stream that is added to it."""
    add = flow.instructions[index]
    if add.op != "add":
        return None
    operands = (add.inputs["x"], add.inputs["y"])
    products = [flow.maker(name, "linear") for name in operands]
    if products == [None, None]:
        return None
    for product, mine, other in zip(products, operands, operands[::-1], strict=True):
        if product is None:
            continue
        alone = flow.is_read_only_by(product, (index,))
        if mine != other and alone and flow.plan.buffer(other).dtype == "float32":
            return Found("linear_add", (product, index))
    return "something else reads the product, or the residual is not float32"


def group_soft_caps(flow: Flow, index: int) -> Found | str | None:
    """A product, with the soft cap of its results."""
    cap = flow.instructions[index]
    product = flow.maker(cap.inputs["x"], "linear") if cap.op == "soft_cap" else None
    if product is None:
        return None
    if not flow.is_read_only_by(product, (index,)):
        return "something else reads the product"
    return Found("linear_soft_cap", (product, index))


def group_sums(flow: Flow, index: int) -> Found | str | None:
    """A sum that belongs to no product, with the first norm of it."""
    if flow.instructions[index].op != "add" or len(flow.members(index)) > 1:
        return None
    return with_norm(flow, index, "add_rms_norm")


def with_norm(flow: Flow, index: int, kernel: str) -> Found | str | None:
    """A sum, whatever it is grouped with so far, and the first norm of it."""
    (total,) = flow.instructions[index].outputs.values()
    norms = [i for i in flow.readers(index) if flow.instructions[i].op == "rms_norm"]
    whole = [i for i in norms if flow.instructions[i].inputs["x"] == total]
    if not whole:
        return None
    if min(flow.readers(index)) != whole[0]:
        return "something else reads the sum before the norm does"
    if is_of_heads(flow, total):
        return "the norm is one of heads"
    return Found(kernel, (index, whole[0]), stores=(total,))


def is_of_heads(flow: Flow, name: str) -> bool:
    """Returns whether rows of a buffer are several heads, each with a norm of its own."""
    return len(flow.plan.buffer(name).shape) > 2
