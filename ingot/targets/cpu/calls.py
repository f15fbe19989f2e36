"""The call of each kernel: one function a kernel, from its instructions to a line of C++.

A kernel's constants are element types and sizes. Its first argument is the thread's part of the
work (see generate.py), and its last arguments are the results, but for what only few models have.
Kernels of products exist twice: for weights stored as numbers, and, with names that begin with
`quantized_`, for weights in integers. What threads and the C++ compiler make of a kernel stands in
kernel_table.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ingot.artifact.plan import Buffer
from ingot.errors import CodegenError
from ingot.targets.cpu.call import KernelCall
from ingot.targets.cpu.call_parts import (
    Constants,
    activation_of,
    boolean,
    cache_of,
    distances_of,
    elementwise,
    expect,
    has_own_weights,
    norm_weight,
    packing,
    product_of,
    result,
    rounded_result,
    same_row,
    scalars_of,
    turned_heads,
)
from ingot.targets.cpu.calls_experts import expert_gate, expert_sum, route
from ingot.targets.cpu.calls_records import recurrence, selective_scan, short_conv, token_shift
from ingot.targets.cpu.kernel_table import QUANTIZED
from ingot.targets.cpu.limits import check_heads
from ingot.targets.cpu.operands import CPP_TYPES, Operands
from ingot.targets.cpu.work import CpuWork
from ingot.targets.turns import turns_of
from ingot.targets.work import where

Emit = Callable[[Operands, CpuWork], KernelCall]


def emit(operands: Operands, work: CpuWork) -> KernelCall:
    """The call that runs a kernel's instructions.

    Raises:
        CodegenError: there is no such kernel; it names the op and the place in the model.
    """
    known = CALLS.get(work.kernel)
    if known is None:
        raise CodegenError(
            f"{where(work.members[-1])} has no CPU kernel {work.kernel}",
            hint=f"Known: {', '.join(sorted(CALLS))}.",
        )
    return known(operands, work)


def embedding(operands: Operands, work: CpuWork) -> KernelCall:
    i = work.member("embedding")
    tokens, table = (operands.of(i, a) for a in ("tokens", "weight"))
    vocabulary, size = table.shape
    ids, out = operands.input(tokens.name), result(operands, i)
    if table.format.is_scaled:
        constants = (*packing(i, table), size, vocabulary)
        return KernelCall(f"{QUANTIZED}embedding", constants, (ids, operands.weight(table), out))
    element, data = CPP_TYPES[table.dtype], operands.weight(table)
    if stored_as_panels(operands, table):
        spelled = f"PanelTable<{element}, {size}, {vocabulary}>{{{{{data}}}}}"
    else:
        spelled = f"PlainTable<{element}, {size}>{{{data}}}"
    return KernelCall("embedding", (size, element), (ids, spelled, out))


def linear(operands: Operands, work: CpuWork) -> KernelCall:
    """A product, and the residual that is added to it."""
    i, last = work.member("linear"), work.members[-1]
    out = operands.of(last, "out")
    product = product_of(operands, i, out)
    residual = "Rows<const float>{}"
    if last is not i:
        (other,) = set(last.inputs.values()) - set(i.outputs.values())
        residual = operands.rows(operands.plan.buffer(other))
    return product.call("linear", (), (residual, operands.rows(out, const=False)))


def head_linear(operands: Operands, work: CpuWork) -> KernelCall:
    i = work.member("head_linear")
    x, weight, out = (operands.of(i, a) for a in ("x", "weight", "out"))
    expect(i, x.dtype == weight.dtype, f"x is {x.dtype} and the weight {weight.dtype}")
    outputs, inputs = map(int, weight.shape)
    heads = x.columns // inputs
    constants = (heads, CPP_TYPES[x.dtype], CPP_TYPES[out.dtype], inputs, outputs)
    arguments = (operands.rows(x), operands.weight(weight), result(operands, i))
    return KernelCall("head_linear", constants, arguments)


def linear_soft_cap(operands: Operands, work: CpuWork) -> KernelCall:
    cap = work.member("soft_cap")
    product = product_of(operands, work.member("linear"), operands.of(cap, "out"))
    return product.call("linear_soft_cap", (), (*scalars_of(cap, "cap"), result(operands, cap)))


def activated_linear(operands: Operands, work: CpuWork) -> KernelCall:
    """A product and its activation, gated or alone; with `_quantize`, also its rounding."""
    made = work.member("gate" if work.has("gate") else "activation")
    product = product_of(operands, work.member("linear"), operands.of(made, "out"))
    sums = "GatedSums" if made.op == "gate" else "ActivatedSums"
    kind = f"{sums}<{activation_of(made)}>"
    if not work.has("cast"):
        return product.call("activated_linear", (kind,), (result(operands, made),))
    block, results = rounded_result(operands, work.member("cast"))
    return product.call("activated_linear_quantize", (kind, block), results)


def linear_rope_kv_write(operands: Operands, work: CpuWork) -> KernelCall:
    product = product_of(operands, work.member("linear"), None)
    constants, arguments = turned_heads(operands, work)
    return product.call("linear_rope_kv_write", constants, arguments)


def rms_norm(operands: Operands, work: CpuWork) -> KernelCall:
    """A norm; with `_quantize`, also the rounding of its results."""
    i = work.member("rms_norm")
    x = operands.of(i, "x")
    size, own = int(x.shape[-1]), has_own_weights(operands, i)
    weight = norm_weight(operands, i, x.columns if own else size)
    scalars = scalars_of(i, "eps", "offset")
    inputs = (operands.rows(x), weight, *scalars)
    if work.has("cast"):
        block, results = rounded_result(operands, work.member("cast"))
        return KernelCall("rms_norm_quantize", (size, block), (*inputs, *results))
    constants = (size, x.columns // size, *(("true",) if own else ()))
    return KernelCall("rms_norm", constants, (*inputs, result(operands, i)))


def add_rms_norm(operands: Operands, work: CpuWork) -> KernelCall:
    add, norm = work.member("add"), work.member("rms_norm")
    x, y, total = (operands.of(add, a) for a in ("x", "y", "out"))
    weight = norm_weight(operands, norm, x.columns)
    inputs = (operands.rows(x), operands.rows(y), weight, *scalars_of(norm, "eps", "offset"))
    results = (result(operands, norm), operands.rows(total, const=False))
    return KernelCall("add_rms_norm", (x.columns,), (*inputs, *results))


def layer_norm(operands: Operands, work: CpuWork) -> KernelCall:
    """A norm of rows, or of the heads in them with one weight for all or one for each."""
    i = work.member("layer_norm")
    x, bias = operands.of(i, "x"), operands.optional(i, "bias")
    size = int(x.shape[-1])
    heads, own = x.columns // size, has_own_weights(operands, i)
    weight = norm_weight(operands, i, x.columns if own else size)
    inputs = (operands.rows(x), weight, operands.weight(bias), *scalars_of(i, "eps"))
    if work.has("cast"):
        return _norm_and_cast(operands, work, (size,), inputs)
    if heads == 1 and not own:
        return KernelCall("layer_norm", (size,), (*inputs, result(operands, i)))
    constants = (size, heads, "true" if own else "false")
    return KernelCall("layer_norm_heads", constants, (*inputs, result(operands, i)))


def _norm_and_cast(
    operands: Operands, work: CpuWork, constants: Constants, inputs: tuple[str, ...]
) -> KernelCall:
    i, cast = work.member("layer_norm"), work.member("cast")
    alone = operands.of(i, "out").kind == "inner"
    out = "Rows<float>{}" if alone else result(operands, i)
    if not operands.of(cast, "out").format.is_scaled:
        return KernelCall("layer_norm_cast", constants, (*inputs, out, result(operands, cast)))
    block, results = rounded_result(operands, cast)
    return KernelCall("layer_norm_quantize", (*constants, block), (*inputs, out, *results))


def rope_table(operands: Operands, work: CpuWork) -> KernelCall:
    i = work.member("rope_table")
    positions, frequencies = (operands.of(i, a) for a in ("positions", "inv_freq"))
    inputs = (operands.input(positions.name), operands.weight(frequencies), *scalars_of(i, "scale"))
    warm = (*scalars_of(i, "temperature"), i.attrs["length"]) if i.attrs.get("temperature") else ()
    return KernelCall("rope_table", (frequencies.shape[0],), (*inputs, result(operands, i), *warm))


def rope(operands: Operands, work: CpuWork) -> KernelCall:
    i = work.member("rope")
    x, table = operands.of(i, "x"), operands.of(i, "table")
    _, heads, size = x.shape
    constants = (heads, size, table.columns // 2, boolean(i, "interleaved"))
    return KernelCall(
        "rope", constants, (operands.rows(x), operands.rows(table), result(operands, i))
    )


def kv_write(operands: Operands, work: CpuWork) -> KernelCall:
    i = work.member("kv_write")
    slots = operands.input(operands.of(i, "slots").name)
    rows = [operands.rows(operands.of(i, a)) for a in ("k", "v") if a in i.inputs]
    kernel = "kv_write" if "v" in i.inputs else "latent_write"
    return KernelCall(kernel, (), (*rows, slots, cache_of(operands, i)))


def rope_kv_write(operands: Operands, work: CpuWork) -> KernelCall:
    (queries, keys), write = turns_of(work), work.member("kv_write")
    names = (queries.source, keys.source, write.inputs["v"])
    inputs = (operands.rows(operands.plan.buffer(name)) for name in names)
    constants, arguments = turned_heads(operands, work)
    return KernelCall("rope_kv_write", constants, (*inputs, *arguments))


def paged_attention(operands: Operands, work: CpuWork) -> KernelCall:
    """Attention; with `_quantize`, also the rounding of its results."""
    i = work.member("paged_attention")
    q, cache = operands.of(i, "q"), operands.of(i, "k_cache")
    expect(i, cache.dtype in (q.dtype, "int8"), f"q is {q.dtype} and the cache {cache.dtype}")
    in_integers = cache.format.is_scaled and "v_cache" in i.inputs
    expect(
        i, bool(i.attrs.get("rounds_queries")) == in_integers, "queries are not rounded as keys are"
    )
    given = operands.optional(i, "sinks")
    expect(i, given is None or given.dtype == "float32", "the sinks are not float32")
    sinks = (operands.weight(given),) if given else ()
    capped = "true" if float(i.attrs["softcap"]) > 0 else "false"
    constants: Constants = (q.shape[1], i.attrs["window"], capped)
    inputs = (
        operands.rows(q),
        cache_of(operands, i),
        "sequences",
        *scalars_of(i, "scale", "softcap"),
    )
    if not work.has("cast"):
        return KernelCall("paged_attention", constants, (*inputs, result(operands, i), *sinks))
    block, results = rounded_result(operands, work.member("cast"))
    return KernelCall("paged_attention_quantize", (*constants, block), (*inputs, *results, *sinks))


def segment_attention(operands: Operands, work: CpuWork) -> KernelCall:
    """Attention; with `_quantize`, also the rounding of its results."""
    i = work.member("segment_attention")
    q, k, v, spans = (operands.of(i, a) for a in ("q", "k", "v", "spans"))
    same = {q.dtype, k.dtype, v.dtype}
    expect(i, len(same) == 1, f"q is {q.dtype}, k {k.dtype} and v {v.dtype}")
    check_heads(k, v)
    element, kept = CPP_TYPES[q.dtype], f"{{{operands.rows(k)}, {operands.rows(v)}}}"
    keys = f"HeadRows<{element}, {', '.join(map(str, k.shape[1:]))}>{kept}"
    if "buckets" in i.inputs:
        count, distances = distances_of(operands, i)
        sizes = ", ".join(map(str, (*k.shape[1:], count)))
        keys = f"DistantRows<{element}, {sizes}>{{{kept}, {distances}}}"
    capped = "true" if float(i.attrs["softcap"]) > 0 else "false"
    constants = (q.shape[1], i.attrs["window"], boolean(i, "causal"), capped)
    segments = (operands.count(spans.shape[0]), operands.input(spans.name))
    scalars = scalars_of(i, "scale", "softcap")
    to = _heads_to(operands, work)
    return KernelCall(
        "segment_attention", constants, (operands.rows(q), keys, *segments, *scalars, to)
    )


def _heads_to(operands: Operands, work: CpuWork) -> str:
    """What takes the result of each head: it stores it, or rounds it."""
    out = operands.of(work.member("segment_attention"), "out")
    size = int(out.shape[-1])
    if not work.has("cast"):
        return f"StoreHead<{size}, {CPP_TYPES[out.dtype]}>{{{operands.rows(out, const=False)}}}"
    cast = work.member("cast")
    block, rows = rounded_result(operands, cast)
    element = CPP_TYPES[operands.of(cast, "out").dtype]
    return f"QuantizeHead<{size}, {block}, {element}>{{{', '.join(map(str, rows))}}}"


def look_ahead(operands: Operands, work: CpuWork) -> KernelCall:
    """Call that announces this attention to a thread as the next one."""
    i = work.member("paged_attention")
    return KernelCall("look_ahead", (i.attrs["window"],), (cache_of(operands, i), "sequences"))


def activation(operands: Operands, work: CpuWork) -> KernelCall:
    return elementwise(operands, work.members[0], activation_of(work.members[0]))


def add(operands: Operands, work: CpuWork) -> KernelCall:
    return elementwise(operands, work.members[0])


def concat(operands: Operands, work: CpuWork) -> KernelCall:
    i = work.members[0]
    x, y = operands.of(i, "x"), operands.of(i, "y")
    sizes = [int(buffer.shape[-1]) for buffer in (x, y)]
    arguments = (operands.rows(x), operands.rows(y), result(operands, i))
    return KernelCall("concat", (x.columns // sizes[0], *sizes), arguments)


def reorder(operands: Operands, work: CpuWork) -> KernelCall:
    i = work.members[0]
    x, order = operands.of(i, "x"), operands.of(i, "order")
    expect(i, order.dtype == "float32", f"the order is {order.dtype}")
    arguments = (operands.rows(x), operands.weight(order), result(operands, i))
    return KernelCall("reorder", (x.columns,), arguments)


def mul(operands: Operands, work: CpuWork) -> KernelCall:
    return elementwise(operands, work.members[0], scalar="factor")


def scale(operands: Operands, work: CpuWork) -> KernelCall:
    i = work.members[0]
    x = operands.of(i, "x")
    arguments = (operands.rows(x), same_row(operands, i, "weight"), result(operands, i))
    return KernelCall("scale", (x.columns,), arguments)


def head_scale(operands: Operands, work: CpuWork) -> KernelCall:
    i = work.members[0]
    x = operands.of(i, "x")
    *_, heads, size = x.shape
    arguments = (operands.rows(x), operands.rows(operands.of(i, "share")), result(operands, i))
    return KernelCall("head_scale", (heads, size), arguments)


def lerp(operands: Operands, work: CpuWork) -> KernelCall:
    i = work.members[0]
    x, y, share = operands.of(i, "x"), operands.of(i, "y"), operands.optional(i, "share")
    shares = operands.rows(share) if share else same_row(operands, i, "weight")
    arguments = (operands.rows(x), operands.rows(y), shares, result(operands, i))
    return KernelCall("lerp", (x.columns,), arguments)


def bonus(operands: Operands, work: CpuWork) -> KernelCall:
    i = work.members[0]
    q, k, v = (operands.of(i, name) for name in "qkv")
    _, heads, size = q.shape
    weight = norm_weight(operands, i, q.columns)
    arguments = (*map(operands.rows, (q, k, v)), weight, result(operands, i))
    return KernelCall("bonus", (heads, size, v.shape[-1]), arguments)


def clamp(operands: Operands, work: CpuWork) -> KernelCall:
    i = work.members[0]
    x = operands.of(i, "x")
    arguments = (operands.rows(x), *scalars_of(i, "low", "high"), result(operands, i))
    return KernelCall("clamp_rows", (x.columns,), arguments)


def soft_cap(operands: Operands, work: CpuWork) -> KernelCall:
    return elementwise(operands, work.members[0], scalar="cap")


def cast(operands: Operands, work: CpuWork) -> KernelCall:
    i = work.members[0]
    x, out = operands.of(i, "x"), operands.of(i, "out")
    if not out.format.is_scaled:
        return elementwise(operands, i)
    block, results = rounded_result(operands, i)
    *parts, columns = map(int, out.shape[1:])
    return KernelCall("quantize", (columns, block, *parts), (operands.rows(x), *results))


def select_rows(operands: Operands, work: CpuWork) -> KernelCall:
    i = work.member("select_rows")
    x, indices = operands.of(i, "x"), operands.of(i, "rows")
    inputs = (operands.rows(x), operands.input(indices.name))
    return KernelCall(
        "select_rows", (x.columns, CPP_TYPES[x.dtype]), (*inputs, result(operands, i))
    )


def pool(operands: Operands, work: CpuWork) -> KernelCall:
    i = work.member("pool")
    x, spans = operands.of(i, "x"), operands.of(i, "spans")
    arguments = (operands.rows(x), operands.input(spans.name), result(operands, i))
    return KernelCall("pool", (x.columns, f"Pooling::{i.attrs['how']}"), arguments)


CALLS: Mapping[str, Emit] = {
    "activated_linear": activated_linear,
    "activated_linear_quantize": activated_linear,
    "activation": activation,
    "add": add,
    "add_rms_norm": add_rms_norm,
    "bonus": bonus,
    "cast": cast,
    "concat": concat,
    "embedding": embedding,
    "expert_gate": expert_gate,
    "expert_gate_quantize": expert_gate,
    "expert_sum": expert_sum,
    "gate": activation,
    "gated_linear": activated_linear,
    "gated_linear_quantize": activated_linear,
    "head_linear": head_linear,
    "kv_write": kv_write,
    "layer_norm": layer_norm,
    "layer_norm_cast": layer_norm,
    "layer_norm_quantize": layer_norm,
    "head_scale": head_scale,
    "lerp": lerp,
    "linear": linear,
    "linear_add": linear,
    "linear_rope_kv_write": linear_rope_kv_write,
    "linear_soft_cap": linear_soft_cap,
    "mul": mul,
    "paged_attention": paged_attention,
    "paged_attention_quantize": paged_attention,
    "pool": pool,
    "recurrence": recurrence,
    "reorder": reorder,
    "rms_norm": rms_norm,
    "rms_norm_quantize": rms_norm,
    "rope": rope,
    "rope_kv_write": rope_kv_write,
    "rope_table": rope_table,
    "route": route,
    "scale": scale,
    "segment_attention": segment_attention,
    "segment_attention_quantize": segment_attention,
    "select_rows": select_rows,
    "selective_scan": selective_scan,
    "short_conv": short_conv,
    "clamp": clamp,
    "soft_cap": soft_cap,
    "token_shift": token_shift,
}


def stored_as_panels(operands: Operands, weight: Buffer) -> bool:
    """Returns whether a product reads the weight: then an embedding gathers from its panels."""
    return weight.name in operands.matrices
