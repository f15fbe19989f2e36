"""The call of each kernel: one function a kernel, from its instructions to a line of C++.

A kernel's constants are element types and sizes. Its first argument is the thread's part of the
work (see generate.py), and its last arguments are the results. Kernels of products exist twice: for
weights stored as numbers, and, with names that begin with `quantized_`, for weights in integers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ingot.artifact.plan import Buffer, Instruction
from ingot.errors import CodegenError
from ingot.targets.cpu.call import Call
from ingot.targets.cpu.operands import CPP_TYPES, Operands, number, where
from ingot.targets.cpu.quantized_panels import fits
from ingot.targets.cpu.work import Work

Emit = Callable[[Operands, Work], Call]
Constants = tuple[object, ...]
Arguments = tuple[object, ...]

ACTIVATIONS: Mapping[str, str] = {
    "silu": "Silu",
    "gelu": "Gelu",
    "gelu_tanh": "GeluTanh",
    "relu": "Relu",
}


def emit(operands: Operands, work: Work) -> Call:
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


def embedding(operands: Operands, work: Work) -> Call:
    i = work.member("embedding")
    tokens, table = (operands.of(i, a) for a in ("tokens", "weight"))
    vocabulary, size = table.shape
    ids, out = f"step.{tokens.name}", _out(operands, i)
    if table.format.is_scaled:
        constants = (*_packing(i, table), size, vocabulary)
        return Call("quantized_embedding", constants, (ids, operands.weight(table), out))
    element, data = CPP_TYPES[table.dtype], operands.weight(table)
    if stored_as_panels(operands, table):
        spelled = f"PanelTable<{element}, {size}, {vocabulary}>{{{{{data}}}}}"
    else:
        spelled = f"PlainTable<{element}, {size}>{{{data}}}"
    return Call("embedding", (size, element), (ids, spelled, out))


def linear(operands: Operands, work: Work) -> Call:
    """A product, and the residual that is added to it."""
    i, last = work.member("linear"), work.members[-1]
    out = operands.of(last, "out")
    product = _product(operands, i, out)
    residual = "Rows<const float>{}"
    if last is not i:
        (other,) = set(last.inputs.values()) - set(i.outputs.values())
        residual = operands.rows(operands.plan.buffer(other))
    return product.call("linear", (), (residual, operands.rows(out, const=False)))


def linear_soft_cap(operands: Operands, work: Work) -> Call:
    cap = work.member("soft_cap")
    product = _product(operands, work.member("linear"), operands.of(cap, "out"))
    return product.call("linear_soft_cap", (), (*_scalars(cap, "cap"), _out(operands, cap)))


def gated_linear(operands: Operands, work: Work) -> Call:
    """A product and its gate; with `_quantize`, also the rounding of its results."""
    gate = work.member("gate")
    product = _product(operands, work.member("linear"), operands.of(gate, "out"))
    if not work.has("cast"):
        return product.call("gated_linear", (_activation(gate),), (_out(operands, gate),))
    block, results = _rounded(operands, work.member("cast"))
    return product.call("gated_linear_quantize", (_activation(gate), block), results)


def linear_rope_kv_write(operands: Operands, work: Work) -> Call:
    product = _product(operands, work.member("linear"), None)
    constants, arguments = _heads(operands, work)
    return product.call("linear_rope_kv_write", constants, arguments)


def rms_norm(operands: Operands, work: Work) -> Call:
    """A norm; with `_quantize`, also the rounding of its results."""
    i = work.member("rms_norm")
    x = operands.of(i, "x")
    size = int(x.shape[-1])
    weight, scalars = _norm_weight(operands, i, size), _scalars(i, "eps", "offset")
    inputs = (operands.rows(x), weight, *scalars)
    if work.has("cast"):
        block, results = _rounded(operands, work.member("cast"))
        return Call("rms_norm_quantize", (size, block), (*inputs, *results))
    return Call("rms_norm", (size, x.columns // size), (*inputs, _out(operands, i)))


def add_rms_norm(operands: Operands, work: Work) -> Call:
    add, norm = work.member("add"), work.member("rms_norm")
    x, y, total = (operands.of(add, a) for a in ("x", "y", "out"))
    weight = _norm_weight(operands, norm, x.columns)
    inputs = (operands.rows(x), operands.rows(y), weight, *_scalars(norm, "eps", "offset"))
    results = (_out(operands, norm), operands.rows(total, const=False))
    return Call("add_rms_norm", (x.columns,), (*inputs, *results))


def layer_norm(operands: Operands, work: Work) -> Call:
    i = work.member("layer_norm")
    x, bias = operands.of(i, "x"), operands.optional(i, "bias")
    weights = (_norm_weight(operands, i, x.columns), operands.weight(bias))
    arguments = (operands.rows(x), *weights, *_scalars(i, "eps"), _out(operands, i))
    return Call("layer_norm", (x.columns,), arguments)


def rope_table(operands: Operands, work: Work) -> Call:
    i = work.member("rope_table")
    positions, frequencies = (operands.of(i, a) for a in ("positions", "inv_freq"))
    inputs = (f"step.{positions.name}", operands.weight(frequencies), *_scalars(i, "scale"))
    return Call("rope_table", (frequencies.shape[0],), (*inputs, _out(operands, i)))


def rope(operands: Operands, work: Work) -> Call:
    i = work.member("rope")
    x, table = operands.of(i, "x"), operands.of(i, "table")
    _, heads, size = x.shape
    constants = (heads, size, table.columns // 2, _bool(i, "interleaved"))
    return Call("rope", constants, (operands.rows(x), operands.rows(table), _out(operands, i)))


def kv_write(operands: Operands, work: Work) -> Call:
    i = work.member("kv_write")
    k, v, slots = (operands.of(i, a) for a in ("k", "v", "slots"))
    inputs = (operands.rows(k), operands.rows(v), f"step.{slots.name}")
    return Call("kv_write", (), (*inputs, _cache(operands, i)))


def rope_kv_write(operands: Operands, work: Work) -> Call:
    (queries, keys), write = _turns(work), work.member("kv_write")
    names = (queries.source, keys.source, write.inputs["v"])
    inputs = (operands.rows(operands.plan.buffer(name)) for name in names)
    constants, arguments = _heads(operands, work)
    return Call("rope_kv_write", constants, (*inputs, *arguments))


def paged_attention(operands: Operands, work: Work) -> Call:
    """Attention; with `_quantize`, also the rounding of its results."""
    i = work.member("paged_attention")
    q, cache = operands.of(i, "q"), operands.of(i, "k_cache")
    _expect(i, cache.dtype in (q.dtype, "int8"), f"q is {q.dtype} and the cache {cache.dtype}")
    capped = "true" if float(i.attrs["softcap"]) > 0 else "false"
    constants: Constants = (q.shape[1], i.attrs["window"], capped)
    inputs = (operands.rows(q), _cache(operands, i), "sequences", *_scalars(i, "scale", "softcap"))
    if not work.has("cast"):
        return Call("paged_attention", constants, (*inputs, _out(operands, i)))
    block, results = _rounded(operands, work.member("cast"))
    return Call("paged_attention_quantize", (*constants, block), (*inputs, *results))


def gate(operands: Operands, work: Work) -> Call:
    return _elementwise(operands, work.members[0], _activation(work.members[0]))


def activation(operands: Operands, work: Work) -> Call:
    return _elementwise(operands, work.members[0], _activation(work.members[0]))


def add(operands: Operands, work: Work) -> Call:
    return _elementwise(operands, work.members[0])


def mul(operands: Operands, work: Work) -> Call:
    return _elementwise(operands, work.members[0], scalar="factor")


def soft_cap(operands: Operands, work: Work) -> Call:
    return _elementwise(operands, work.members[0], scalar="cap")


def cast(operands: Operands, work: Work) -> Call:
    i = work.members[0]
    x, out = operands.of(i, "x"), operands.of(i, "out")
    if not out.format.is_scaled:
        return _elementwise(operands, i)
    block, results = _rounded(operands, i)
    return Call("quantize", (x.columns, block), (operands.rows(x), *results))


def select_rows(operands: Operands, work: Work) -> Call:
    i = work.member("select_rows")
    x, indices = operands.of(i, "x"), operands.of(i, "rows")
    inputs = (operands.rows(x), f"step.{indices.name}")
    return Call("select_rows", (x.columns, CPP_TYPES[x.dtype]), (*inputs, _out(operands, i)))


CALLS: Mapping[str, Emit] = {
    "activation": activation,
    "add": add,
    "add_rms_norm": add_rms_norm,
    "cast": cast,
    "embedding": embedding,
    "gate": gate,
    "gated_linear": gated_linear,
    "gated_linear_quantize": gated_linear,
    "kv_write": kv_write,
    "layer_norm": layer_norm,
    "linear": linear,
    "linear_add": linear,
    "linear_rope_kv_write": linear_rope_kv_write,
    "linear_soft_cap": linear_soft_cap,
    "mul": mul,
    "paged_attention": paged_attention,
    "paged_attention_quantize": paged_attention,
    "rms_norm": rms_norm,
    "rms_norm_quantize": rms_norm,
    "rope": rope,
    "rope_kv_write": rope_kv_write,
    "rope_table": rope_table,
    "select_rows": select_rows,
    "soft_cap": soft_cap,
}


def stored_as_panels(operands: Operands, weight: Buffer) -> bool:
    """Whether a product reads the weight; an embedding that shares it gathers from the panels."""
    return weight.name in operands.matrices


@dataclass(frozen=True)
class _Product:
    """A product's part of a kernel: the format and sizes of its weight, and what it multiplies."""

    prefix: str
    constants: Constants
    arguments: Arguments

    def call(self, kernel: str, constants: Constants, arguments: Arguments) -> Call:
        """The call of a kernel that has further constants, before these, and further arguments."""
        name = f"{self.prefix}{kernel}"
        return Call(name, (*constants, *self.constants), (*self.arguments, *arguments))


def _product(operands: Operands, i: Instruction, out: Buffer | None) -> _Product:
    """The product of an instruction; `out` is None if it makes heads, whose width is known."""
    x, weight, bias = operands.of(i, "x"), operands.of(i, "weight"), operands.optional(i, "bias")
    _expect(i, bias is None or bias.dtype == "float32", "the bias is not float32")
    outputs, inputs = map(int, weight.shape)
    sizes = (inputs,) if out is None else (inputs, outputs)
    pointers = (operands.weight(weight), operands.weight(bias))
    if not weight.format.is_scaled:
        _expect(i, x.dtype == weight.dtype, f"x is {x.dtype} and the weight {weight.dtype}")
        types = () if out is None else (CPP_TYPES[x.dtype], CPP_TYPES[out.dtype])
        return _Product("", (*types, *sizes), (operands.rows(x), *pointers))
    same = x.format.is_scaled and x.format.block == weight.format.block
    _expect(i, same, f"x is {x.format} and the weight {weight.format}")
    rows = (operands.rows(x), operands.scales(x))
    return _Product("quantized_", (*_packing(i, weight), *sizes), (*rows, *pointers))


@dataclass(frozen=True)
class _Turn:
    """How heads are rotated, and the norm before that if there is one."""

    rope: Instruction
    norm: Instruction | None

    @property
    def source(self) -> str:
        return (self.norm or self.rope).inputs["x"]


def _turns(work: Work) -> tuple[_Turn, _Turn]:
    """The turns of queries and of keys."""
    made = {name: i for i in work.members for name in i.outputs.values()}
    ropes = [i for i in work.members if i.op == "rope"]
    key = made[work.member("kv_write").inputs["k"]]
    queries = next(rope for rope in ropes if rope is not key)
    turns = (_Turn(rope, _norm_of(made.get(rope.inputs["x"]))) for rope in (queries, key))
    first, second = turns
    return first, second


def _norm_of(maker: Instruction | None) -> Instruction | None:
    return maker if maker is not None and maker.op == "rms_norm" else None


def _heads(operands: Operands, work: Work) -> tuple[Constants, Arguments]:
    """How queries and keys are turned, and where they and the values go."""
    turns, write = _turns(work), work.member("kv_write")
    rope, out = turns[0].rope, operands.of(turns[0].rope, "out")
    table, slots = operands.of(rope, "table"), operands.of(write, "slots")
    weights = (operands.weight(operands.of(t.norm, "weight") if t.norm else None) for t in turns)
    scalars = _scalars(turns[0].norm, "eps", "offset")
    norm = f"HeadNorm{{{', '.join((*weights, *scalars))}}}"
    where = (operands.rows(table), f"step.{slots.name}", _cache(operands, write))
    return (
        (out.shape[1], table.columns // 2, _bool(rope, "interleaved")),
        (*where, norm, operands.rows(out, const=False)),
    )


def _activation(i: Instruction) -> str:
    kind = str(i.attrs["kind"])
    _expect(i, kind in ACTIVATIONS, f"the activation {kind!r} is unknown")
    return ACTIVATIONS[kind]


def _elementwise(operands: Operands, i: Instruction, *kind: str, scalar: str = "") -> Call:
    buffers = [operands.plan.buffer(name) for name in i.inputs.values()]
    scalars = _scalars(i, scalar) if scalar else ()
    arguments = (*map(operands.rows, buffers), *scalars, _out(operands, i))
    return Call(i.op, (buffers[0].columns, *kind), arguments)


def _rounded(operands: Operands, cast: Instruction) -> tuple[int, Arguments]:
    """The block of a result in int8, and where its values and its scales go."""
    out = operands.of(cast, "out")
    rows = operands.rows(out, const=False), operands.scales(out, const=False)
    return out.format.block, rows


def _out(operands: Operands, i: Instruction) -> str:
    return operands.rows(operands.of(i, "out"), const=False)


def _cache(operands: Operands, i: Instruction) -> str:
    keys, values = operands.of(i, "k_cache"), operands.of(i, "v_cache")
    whole = not keys.format.is_scaled or keys.format.block == keys.shape[-1]
    _expect(i, whole, f"heads of {keys.shape[-1]} in {keys.format}")
    return operands.cache(keys, values)


def _norm_weight(operands: Operands, i: Instruction, size: int) -> str:
    weight = operands.of(i, "weight")
    _expect(i, weight.dtype == "float32", f"the weight is {weight.dtype}, not float32")
    _expect(i, weight.shape == (size,), f"a weight of {weight.shape} for rows of {size}")
    return operands.weight(weight)


def _packing(i: Instruction, weight: Buffer) -> tuple[int, int, int]:
    """Bits, group and block of a weight that is packed as quantized_panels.py says."""
    form, columns = weight.format, weight.columns
    _expect(i, fits(columns, form), f"weights in {form} in rows of {columns}")
    return form.bits, form.group, form.block


def _scalars(i: Instruction | None, *attributes: str) -> tuple[str, ...]:
    """Float attributes of an instruction; zeros if there is no instruction."""
    attrs = {} if i is None else i.attrs
    return tuple(number(float(attrs.get(attribute, 0.0))) for attribute in attributes)


def _bool(i: Instruction, attribute: str) -> str:
    return "true" if i.attrs[attribute] else "false"


def _expect(i: Instruction, condition: bool, found: str) -> None:
    if not condition:
        raise CodegenError(f"{where(i)}: {found}", hint="No CPU kernel takes that combination.")
