"""The kernel call of each op: one function an op, from an instruction to a line of C++."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ingot.artifact.plan import Buffer, Instruction
from ingot.compiler.cpp.operands import CPP_TYPES, Operands, columns, number, rows, where
from ingot.errors import CodegenError

Emit = Callable[[Operands, Instruction], str]

ACTIVATIONS: Mapping[str, str] = {
    "silu": "Silu",
    "gelu": "Gelu",
    "gelu_tanh": "GeluTanh",
    "relu": "Relu",
}


def emit(operands: Operands, instruction: Instruction) -> str:
    """The call that carries out an instruction.

    Raises:
        CodegenError: no kernel here does that; names the op and the place in the model.
    """
    call = CALLS.get(instruction.op)
    if call is None:
        raise CodegenError(
            f"{where(instruction)} has no CPU kernel", hint=f"Known: {', '.join(sorted(CALLS))}."
        )
    return call(operands, instruction)


def embedding(operands: Operands, i: Instruction) -> str:
    tokens, table, out = (operands.of(i, a) for a in ("tokens", "weight", "out"))
    vocabulary, size = table.shape
    element = CPP_TYPES[table.dtype]
    if stored_as_panels(operands, table):
        spelled = f"PanelTable<{element}, {size}, {vocabulary}>{{{{{operands.weight(table)}}}}}"
    else:
        spelled = f"PlainTable<{element}, {size}>{{{operands.weight(table)}}}"
    return _call(
        "embedding", [size, element], [rows(out), f"step.{tokens.name}", spelled, _out(operands, i)]
    )


def linear(operands: Operands, i: Instruction) -> str:
    x, weight, out = (operands.of(i, a) for a in ("x", "weight", "out"))
    bias = operands.optional(i, "bias")
    _expect(i, x.dtype == weight.dtype, f"x is {x.dtype} and the weight {weight.dtype}")
    _expect(i, bias is None or bias.dtype == "float32", "the bias is not float32")
    outputs, inputs = weight.shape
    return _call(
        "linear",
        [CPP_TYPES[x.dtype], CPP_TYPES[out.dtype], inputs, outputs],
        [
            rows(x),
            operands.rows(x),
            operands.weight(weight),
            operands.weight(bias),
            _out(operands, i),
        ],
    )


def rms_norm(operands: Operands, i: Instruction) -> str:
    x = operands.of(i, "x")
    return _call(
        "rms_norm",
        [columns(x)],
        [
            rows(x),
            operands.rows(x),
            _norm_weight(operands, i),
            number(float(i.attrs["eps"])),
            number(float(i.attrs.get("offset", 0.0))),
            _out(operands, i),
        ],
    )


def add_rms_norm(operands: Operands, i: Instruction) -> str:
    x, residual, total = (operands.of(i, a) for a in ("x", "residual", "sum"))
    return _call(
        "add_rms_norm",
        [columns(x)],
        [
            rows(x),
            operands.rows(x),
            operands.rows(residual),
            _norm_weight(operands, i),
            number(float(i.attrs["eps"])),
            number(float(i.attrs.get("offset", 0.0))),
            _out(operands, i),
            operands.rows(total, const=False),
        ],
    )


def layer_norm(operands: Operands, i: Instruction) -> str:
    x = operands.of(i, "x")
    return _call(
        "layer_norm",
        [columns(x)],
        [
            rows(x),
            operands.rows(x),
            _norm_weight(operands, i),
            operands.weight(operands.optional(i, "bias")),
            number(float(i.attrs["eps"])),
            _out(operands, i),
        ],
    )


def rope_table(operands: Operands, i: Instruction) -> str:
    positions, frequencies, out = (operands.of(i, a) for a in ("positions", "inv_freq", "out"))
    return _call(
        "rope_table",
        [frequencies.shape[0]],
        [
            rows(out),
            f"step.{positions.name}",
            operands.weight(frequencies),
            number(float(i.attrs.get("scale", 1.0))),
            _out(operands, i),
        ],
    )


def rope(operands: Operands, i: Instruction) -> str:
    x, table = operands.of(i, "x"), operands.of(i, "table")
    _, heads, size = x.shape
    return _call(
        "rope",
        [heads, size, columns(table) // 2, _bool(i, "interleaved")],
        [rows(x), operands.rows(x), operands.rows(table), _out(operands, i)],
    )


def kv_write(operands: Operands, i: Instruction) -> str:
    k, v, slots = (operands.of(i, a) for a in ("k", "v", "slots"))
    return _call(
        "kv_write",
        [],
        [rows(k), operands.rows(k), operands.rows(v), f"step.{slots.name}", _cache(operands, i)],
    )


def rope_kv_write(operands: Operands, i: Instruction) -> str:
    q, k, v, table, slots = (operands.of(i, a) for a in ("q", "k", "v", "table", "slots"))
    cache = operands.of(i, "k_cache")
    _, kv_heads, page_size, size = cache.shape
    norms = (operands.weight(operands.optional(i, a)) for a in ("q_norm", "k_norm"))
    scalars = (number(float(i.attrs.get(a, 0.0))) for a in ("eps", "offset"))
    return _call(
        "rope_kv_write",
        [
            CPP_TYPES[cache.dtype],
            q.shape[1],
            kv_heads,
            page_size,
            size,
            columns(table) // 2,
            _bool(i, "interleaved"),
        ],
        [
            rows(q),
            operands.rows(q),
            operands.rows(k),
            operands.rows(v),
            operands.rows(table),
            f"step.{slots.name}",
            _cache(operands, i),
            f"HeadNorm{{{', '.join((*norms, *scalars))}}}",
            _out(operands, i),
        ],
    )


def paged_attention(operands: Operands, i: Instruction) -> str:
    q, cache = operands.of(i, "q"), operands.of(i, "k_cache")
    _, kv_heads, page_size, size = cache.shape
    softcap = float(i.attrs.get("softcap", 0.0))
    _expect(i, q.dtype == cache.dtype, f"q is {q.dtype} and the cache {cache.dtype}")
    return _call(
        "paged_attention",
        [
            CPP_TYPES[cache.dtype],
            q.shape[1],
            kv_heads,
            page_size,
            size,
            int(i.attrs.get("window", 0)),
            "true" if softcap > 0 else "false",
        ],
        [
            operands.rows(q),
            _cache(operands, i),
            "sequences",
            number(float(i.attrs["scale"])),
            number(softcap),
            _out(operands, i),
        ],
    )


def silu_mul(operands: Operands, i: Instruction) -> str:
    gate, up = operands.of(i, "gate"), operands.of(i, "up")
    return _call(
        "silu_mul",
        [columns(gate)],
        [rows(gate), operands.rows(gate), operands.rows(up), _out(operands, i)],
    )


def gelu_mul(operands: Operands, i: Instruction) -> str:
    gate, up = operands.of(i, "gate"), operands.of(i, "up")
    kind = "GeluTanh" if i.attrs["tanh"] else "Gelu"
    return _call(
        "gelu_mul",
        [columns(gate), kind],
        [rows(gate), operands.rows(gate), operands.rows(up), _out(operands, i)],
    )


def activation(operands: Operands, i: Instruction) -> str:
    x = operands.of(i, "x")
    return _call(
        "activation",
        [columns(x), _activation(i)],
        [rows(x), operands.rows(x), _out(operands, i)],
    )


def add(operands: Operands, i: Instruction) -> str:
    x, y = operands.of(i, "x"), operands.of(i, "y")
    return _call(
        "add", [columns(x)], [rows(x), operands.rows(x), operands.rows(y), _out(operands, i)]
    )


def cast(operands: Operands, i: Instruction) -> str:
    x = operands.of(i, "x")
    return _call("cast", [columns(x)], [rows(x), operands.rows(x), _out(operands, i)])


def select_rows(operands: Operands, i: Instruction) -> str:
    x, indices, out = (operands.of(i, a) for a in ("x", "rows", "out"))
    return _call(
        "select_rows",
        [columns(x), CPP_TYPES[x.dtype]],
        [rows(out), operands.rows(x), f"step.{indices.name}", _out(operands, i)],
    )


CALLS: Mapping[str, Emit] = {
    call.__name__: call
    for call in (
        activation,
        add,
        add_rms_norm,
        cast,
        embedding,
        gelu_mul,
        kv_write,
        layer_norm,
        linear,
        paged_attention,
        rms_norm,
        rope,
        rope_kv_write,
        rope_table,
        select_rows,
        silu_mul,
    )
}


def stored_as_panels(operands: Operands, weight: Buffer) -> bool:
    """Whether a linear reads the weight; an embedding that shares it gathers from the panels."""
    return any(
        i.op == "linear" and i.inputs["weight"] == weight.name for i in operands.plan.instructions
    )


def _call(kernel: str, constants: list[object], arguments: list[object]) -> str:
    template = f"<{', '.join(map(str, constants))}>" if constants else ""
    return f"{kernel}{template}({', '.join(map(str, ['team', *arguments]))});"


def _out(operands: Operands, i: Instruction) -> str:
    return operands.rows(operands.of(i, "out"), const=False)


def _cache(operands: Operands, i: Instruction) -> str:
    return operands.cache(operands.of(i, "k_cache"), operands.of(i, "v_cache"))


def _norm_weight(operands: Operands, i: Instruction) -> str:
    weight = operands.of(i, "weight")
    _expect(i, weight.dtype == "float32", f"the weight is {weight.dtype}, not float32")
    return operands.weight(weight)


def _activation(i: Instruction) -> str:
    kind = str(i.attrs["kind"])
    _expect(i, kind in ACTIVATIONS, f"the activation {kind!r} is unknown")
    return ACTIVATIONS[kind]


def _bool(i: Instruction, attribute: str) -> str:
    return "true" if i.attrs.get(attribute, False) else "false"


def _expect(i: Instruction, condition: bool, found: str) -> None:
    if not condition:
        raise CodegenError(f"{where(i)}: {found}", hint="No CPU kernel takes that combination.")
