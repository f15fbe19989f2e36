"""The kernel call of each op: one function an op, from an instruction to a line of C++.

A kernel has the name of its op. Its constants are element types and sizes; its arguments end with
the results. Ahead of them comes the part of the work that is a thread's: see generate.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ingot.artifact.formats import Spans
from ingot.artifact.plan import Buffer, Instruction
from ingot.errors import CodegenError
from ingot.targets.cpu.call import Call
from ingot.targets.cpu.operands import CPP_TYPES, Operands, columns, number, where
from ingot.targets.cpu.quantized_panels import fits

Emit = Callable[[Operands, Instruction], Call]
Constants = tuple[object, ...]
Arguments = tuple[object, ...]

PRODUCTS = (
    "linear",
    "gated_linear",
    "linear_rope_kv_write",
)  # with weights in panels of 64 columns

ACTIVATIONS: Mapping[str, str] = {
    "silu": "Silu",
    "gelu": "Gelu",
    "gelu_tanh": "GeluTanh",
    "relu": "Relu",
}


def emit(operands: Operands, instruction: Instruction) -> Call:
    """The call that carries out an instruction.

    Raises:
        CodegenError: no kernel here does that; names the op and the place in the model.
    """
    known = CALLS.get(instruction.op)
    if known is None:
        raise CodegenError(
            f"{where(instruction)} has no CPU kernel", hint=f"Known: {', '.join(sorted(CALLS))}."
        )
    return known(operands, instruction)


def embedding(operands: Operands, i: Instruction) -> Call:
    tokens, table = (operands.of(i, a) for a in ("tokens", "weight"))
    vocabulary, size = table.shape
    element, data = CPP_TYPES[table.dtype], operands.weight(table)
    if stored_as_panels(operands, table):
        spelled = f"PanelTable<{element}, {size}, {vocabulary}>{{{{{data}}}}}"
    else:
        spelled = f"PlainTable<{element}, {size}>{{{data}}}"
    arguments = (f"step.{tokens.name}", spelled, _out(operands, i))
    return Call(i.op, (size, element), arguments)


def linear(operands: Operands, i: Instruction) -> Call:
    constants, arguments = _product(operands, i)
    return Call(i.op, constants, (*arguments, _residual(operands, i), _out(operands, i)))


def gated_linear(operands: Operands, i: Instruction) -> Call:
    constants, arguments = _product(operands, i)
    return Call(i.op, (_activation(i), *constants), (*arguments, _out(operands, i)))


def quantize(operands: Operands, i: Instruction) -> Call:
    x, values, scales = (operands.of(i, a) for a in ("x", "values", "scales"))
    results = (operands.rows(values, const=False), operands.rows(scales, const=False))
    return Call(i.op, (columns(x), i.attrs["group"]), (operands.rows(x), *results))


def quantized_linear(operands: Operands, i: Instruction) -> Call:
    constants, arguments = _quantized_product(operands, i)
    return Call(i.op, constants, (*arguments, _residual(operands, i), _out(operands, i)))


def quantized_gated_linear(operands: Operands, i: Instruction) -> Call:
    constants, arguments = _quantized_product(operands, i)
    return Call(i.op, (_activation(i), *constants), (*arguments, _out(operands, i)))


def quantized_embedding(operands: Operands, i: Instruction) -> Call:
    tokens, table = (operands.of(i, a) for a in ("tokens", "weight"))
    vocabulary, size = table.shape
    return Call(
        i.op,
        (*_format(i), size, vocabulary),
        (f"step.{tokens.name}", _packed(operands, i, table), _out(operands, i)),
    )


def rms_norm(operands: Operands, i: Instruction) -> Call:
    x = operands.of(i, "x")
    size = int(x.shape[-1])
    weight, scalars = _norm_weight(operands, i, size), _scalars(i, "eps", "offset")
    arguments = (operands.rows(x), weight, *scalars, _out(operands, i))
    return Call(i.op, (size, columns(x) // size), arguments)


def rms_norm_quantize(operands: Operands, i: Instruction) -> Call:
    x = operands.of(i, "x")
    weight, scalars = _norm_weight(operands, i, columns(x)), _scalars(i, "eps", "offset")
    arguments = (operands.rows(x), weight, *scalars, *_rounded(operands, i))
    return Call(i.op, (columns(x), i.attrs["group"]), arguments)


def add_rms_norm(operands: Operands, i: Instruction) -> Call:
    x, residual, total = (operands.of(i, a) for a in ("x", "residual", "sum"))
    weight = _norm_weight(operands, i, columns(x))
    inputs = (operands.rows(x), operands.rows(residual), weight)
    results = (_out(operands, i), operands.rows(total, const=False))
    return Call(i.op, (columns(x),), (*inputs, *_scalars(i, "eps", "offset"), *results))


def layer_norm(operands: Operands, i: Instruction) -> Call:
    x, bias = operands.of(i, "x"), operands.optional(i, "bias")
    weights = (_norm_weight(operands, i, columns(x)), operands.weight(bias))
    arguments = (operands.rows(x), *weights, *_scalars(i, "eps"), _out(operands, i))
    return Call(i.op, (columns(x),), arguments)


def rope_table(operands: Operands, i: Instruction) -> Call:
    positions, frequencies = (operands.of(i, a) for a in ("positions", "inv_freq"))
    inputs = (f"step.{positions.name}", operands.weight(frequencies), *_scalars(i, "scale"))
    return Call(i.op, (frequencies.shape[0],), (*inputs, _out(operands, i)))


def rope(operands: Operands, i: Instruction) -> Call:
    x, table = operands.of(i, "x"), operands.of(i, "table")
    _, heads, size = x.shape
    return Call(
        i.op,
        (heads, size, columns(table) // 2, _bool(i, "interleaved")),
        (operands.rows(x), operands.rows(table), _out(operands, i)),
    )


def kv_write(operands: Operands, i: Instruction) -> Call:
    k, v, slots = (operands.of(i, a) for a in ("k", "v", "slots"))
    inputs = (operands.rows(k), operands.rows(v), f"step.{slots.name}")
    return Call(i.op, (), (*inputs, _cache(operands, i)))


def rope_kv_write(operands: Operands, i: Instruction) -> Call:
    q, k, v = (operands.of(i, a) for a in ("q", "k", "v"))
    constants, arguments = _heads(operands, i)
    return Call(i.op, constants, (*map(operands.rows, (q, k, v)), *arguments))


def linear_rope_kv_write(operands: Operands, i: Instruction) -> Call:
    (*_, inputs, _), product = _product(operands, i)
    constants, arguments = _heads(operands, i)
    return Call(i.op, (*constants, inputs), (*product, *arguments))


def quantized_gated_linear_quantize(operands: Operands, i: Instruction) -> Call:
    constants, arguments = _quantized_product(operands, i)
    return Call(
        i.op,
        (_activation(i), i.attrs["result_group"], *constants),
        (*arguments, *_rounded(operands, i)),
    )


def quantized_linear_rope_kv_write(operands: Operands, i: Instruction) -> Call:
    (*packing, inputs, _), product = _quantized_product(operands, i)
    constants, arguments = _heads(operands, i)
    return Call(i.op, (*constants, *packing, inputs), (*product, *arguments))


def paged_attention(operands: Operands, i: Instruction) -> Call:
    constants, arguments = _attention(operands, i)
    return Call(i.op, constants, (*arguments, _out(operands, i)))


def paged_attention_quantize(operands: Operands, i: Instruction) -> Call:
    constants, arguments = _attention(operands, i)
    return Call(i.op, (*constants, i.attrs["group"]), (*arguments, *_rounded(operands, i)))


def _attention(operands: Operands, i: Instruction) -> tuple[Constants, Arguments]:
    """The shape of attention, and what it reads."""
    q, cache = operands.of(i, "q"), operands.of(i, "k_cache")
    matching = cache.dtype in (q.dtype, "int8")
    _expect(i, matching, f"q is {q.dtype} and the cache {cache.dtype}")
    capped = "true" if float(i.attrs.get("softcap", 0.0)) > 0 else "false"
    inputs = (operands.rows(q), _cache(operands, i), "sequences")
    return (
        (q.shape[1], i.attrs.get("window", 0), capped),
        (*inputs, *_scalars(i, "scale", "softcap")),
    )


def silu_mul(operands: Operands, i: Instruction) -> Call:
    return _elementwise(operands, i, ("gate", "up"))


def gelu_mul(operands: Operands, i: Instruction) -> Call:
    kind = ACTIVATIONS["gelu_tanh" if i.attrs["tanh"] else "gelu"]
    return _elementwise(operands, i, ("gate", "up"), kind)


def relu_mul(operands: Operands, i: Instruction) -> Call:
    return _elementwise(operands, i, ("gate", "up"))


def activation(operands: Operands, i: Instruction) -> Call:
    return _elementwise(operands, i, ("x",), _activation(i))


def add(operands: Operands, i: Instruction) -> Call:
    return _elementwise(operands, i, ("x", "y"))


def cast(operands: Operands, i: Instruction) -> Call:
    return _elementwise(operands, i, ("x",))


def select_rows(operands: Operands, i: Instruction) -> Call:
    x, indices = (operands.of(i, a) for a in ("x", "rows"))
    inputs = (operands.rows(x), f"step.{indices.name}")
    return Call(i.op, (columns(x), CPP_TYPES[x.dtype]), (*inputs, _out(operands, i)))


CALLS: Mapping[str, Emit] = {
    function.__name__: function
    for function in (
        *(
            embedding,
            linear,
            gated_linear,
            quantize,
            quantized_linear,
            quantized_gated_linear,
            quantized_gated_linear_quantize,
            quantized_linear_rope_kv_write,
            quantized_embedding,
            rms_norm,
            rms_norm_quantize,
            add_rms_norm,
            layer_norm,
        ),
        *(
            rope_table,
            rope,
            kv_write,
            rope_kv_write,
            linear_rope_kv_write,
            paged_attention,
            paged_attention_quantize,
        ),
        *(silu_mul, gelu_mul, relu_mul, activation, add, cast, select_rows),
    )
}


def stored_as_panels(operands: Operands, weight: Buffer) -> bool:
    """Whether a product reads the weight; an embedding that shares it gathers from the panels."""
    return any(
        i.op in PRODUCTS and i.inputs["weight"] == weight.name for i in operands.plan.instructions
    )


def _product(operands: Operands, i: Instruction) -> tuple[Constants, Arguments]:
    """The types and sizes of a product with a weight in panels, and what it multiplies."""
    x, weight, out = (operands.of(i, a) for a in ("x", "weight", "out"))
    bias = operands.optional(i, "bias")
    _expect(i, x.dtype == weight.dtype, f"x is {x.dtype} and the weight {weight.dtype}")
    _expect(i, bias is None or bias.dtype == "float32", "the bias is not float32")
    outputs, inputs = map(int, weight.shape)
    return (
        (CPP_TYPES[x.dtype], CPP_TYPES[out.dtype], inputs, outputs),
        (operands.rows(x), operands.weight(weight), operands.weight(bias)),
    )


def _quantized_product(operands: Operands, i: Instruction) -> tuple[Constants, Arguments]:
    """The format and sizes of a product with a quantized weight, and what it multiplies."""
    x, scales, weight = (operands.of(i, a) for a in ("values", "scales", "weight"))
    bias = operands.optional(i, "bias")
    _expect(i, bias is None or bias.dtype == "float32", "the bias is not float32")
    outputs, inputs = weight.shape
    pointers = (_packed(operands, i, weight), operands.weight(bias))
    return (
        (*_format(i), inputs, outputs),
        (operands.rows(x), operands.rows(scales), *pointers),
    )


def _heads(operands: Operands, i: Instruction) -> tuple[Constants, Arguments]:
    """How queries and keys are turned, and where those and values go."""
    table, slots, out = (operands.of(i, a) for a in ("table", "slots", "out"))
    norms = (operands.weight(operands.optional(i, a)) for a in ("q_norm", "k_norm"))
    norm = ", ".join((*norms, *_scalars(i, "eps", "offset")))
    where = (operands.rows(table), f"step.{slots.name}", _cache(operands, i))
    return (
        (out.shape[1], columns(table) // 2, _bool(i, "interleaved")),
        (*where, f"HeadNorm{{{norm}}}", _out(operands, i)),
    )


def _residual(operands: Operands, i: Instruction) -> str:
    residual = operands.optional(i, "residual")
    if residual is None:
        return "Rows<const float>{}"
    _expect(i, residual.dtype == "float32", f"the residual is {residual.dtype}, not float32")
    return operands.rows(residual)


def _activation(i: Instruction) -> str:
    kind = str(i.attrs["kind"])
    _expect(i, kind in ACTIVATIONS, f"the activation {kind!r} is unknown")
    return ACTIVATIONS[kind]


def _elementwise(
    operands: Operands, i: Instruction, arguments: tuple[str, ...], *kind: str
) -> Call:
    buffers = [operands.of(i, argument) for argument in arguments]
    inputs = map(operands.rows, buffers)
    return Call(
        i.op,
        (columns(buffers[0]), *kind),
        (*inputs, _out(operands, i)),
    )


def _rounded(operands: Operands, i: Instruction) -> tuple[str, str]:
    """A result in int8, and its scales."""
    return _out(operands, i), operands.rows(operands.of(i, "out_scales"), const=False)


def _out(operands: Operands, i: Instruction) -> str:
    return operands.rows(operands.of(i, "out"), const=False)


def _cache(operands: Operands, i: Instruction) -> str:
    keys, values = operands.of(i, "k_cache"), operands.of(i, "v_cache")
    scales = operands.optional(i, "k_scales"), operands.optional(i, "v_scales")
    has_scales = all(buffer and buffer.dtype == "float32" for buffer in scales)
    _expect(i, has_scales == (keys.dtype == "int8"), f"scales of a cache in {keys.dtype}")
    return operands.cache(keys, values, *scales)


def _norm_weight(operands: Operands, i: Instruction, size: int) -> str:
    weight = operands.of(i, "weight")
    _expect(i, weight.dtype == "float32", f"the weight is {weight.dtype}, not float32")
    _expect(i, weight.shape == (size,), f"a weight of {weight.shape} for rows of {size}")
    return operands.weight(weight)


def _packed(operands: Operands, i: Instruction, weight: Buffer) -> str:
    """A pointer to panels of quantized_panels.py."""
    bits, group, block = _format(i)
    columns = int(weight.shape[1])
    _expect(i, weight.dtype == f"int{bits}", f"{bits} bits of a weight that is {weight.dtype}")
    found = f"groups of {group} int{bits} and blocks of {block} in rows of {columns}"
    _expect(i, fits(columns, bits, Spans(group, block)), found)
    return operands.packed(weight)


def _format(i: Instruction) -> tuple[int, int, int]:
    """Bits, group and block of a quantized weight."""
    bits, group, block = (int(i.attrs[name]) for name in ("bits", "group", "block"))
    return bits, group, block


def _scalars(i: Instruction, *attributes: str) -> tuple[str, ...]:
    """Float attributes; plans hold defaults too, but for those that an op defaults to 0."""
    return tuple(number(float(i.attrs.get(attribute, 0.0))) for attribute in attributes)


def _bool(i: Instruction, attribute: str) -> str:
    return "true" if i.attrs.get(attribute, False) else "false"


def _expect(i: Instruction, condition: bool, found: str) -> None:
    if not condition:
        raise CodegenError(f"{where(i)}: {found}", hint="No CPU kernel takes that combination.")
