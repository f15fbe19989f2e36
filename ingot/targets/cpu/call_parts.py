"""Parts that calls of several kernels share: products, turned heads, results, scalars."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ingot.artifact.formats import BYTE
from ingot.artifact.plan import Buffer, Instruction
from ingot.errors import CodegenError
from ingot.targets.cpu.call import KernelCall
from ingot.targets.cpu.kernel_table import QUANTIZED
from ingot.targets.cpu.operands import CPP_TYPES, Operands, number
from ingot.targets.cpu.weights import blocks_together, fits
from ingot.targets.cpu.work import CpuWork
from ingot.targets.turns import turns_of
from ingot.targets.work import where

Constants = tuple[object, ...]
Arguments = tuple[object, ...]

ACTIVATIONS: Mapping[str, str] = {
    "silu": "Silu",
    "gelu": "Gelu",
    "gelu_tanh": "GeluTanh",
    "relu": "Relu",
    "relu2": "Relu2",
    "log1p_relu": "Log1pRelu",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "softplus": "Softplus",
    "identity": "Identity",
}


@dataclass(frozen=True)
class ProductCall:
    """A product's part of a kernel: the format and sizes of its weight, and what it multiplies."""

    prefix: str
    constants: Constants
    arguments: Arguments

    def call(self, kernel: str, constants: Constants, arguments: Arguments) -> KernelCall:
        """The call of a kernel that has further constants, before these, and further arguments."""
        name = f"{self.prefix}{kernel}"
        return KernelCall(name, (*constants, *self.constants), (*self.arguments, *arguments))


def product_of(operands: Operands, i: Instruction, out: Buffer | None) -> ProductCall:
    """The product of an instruction; `out` is None if it makes heads, whose width is known."""
    x, weight, bias = operands.of(i, "x"), operands.of(i, "weight"), operands.optional(i, "bias")
    expect(i, bias is None or bias.dtype == "float32", "the bias is not float32")
    outputs, inputs = map(int, weight.shape)
    sizes = (inputs,) if out is None else (inputs, outputs)
    pointers = (operands.weight(weight), operands.weight(bias))
    if not weight.format.is_scaled:
        expect(i, x.dtype == weight.dtype, f"x is {x.dtype} and the weight {weight.dtype}")
        types = () if out is None else (CPP_TYPES[x.dtype], CPP_TYPES[out.dtype])
        return ProductCall("", (*types, *sizes), (operands.rows(x), *pointers))
    same = x.format.is_scaled and x.format.block == weight.format.block
    expect(i, same, f"x is {x.format} and the weight {weight.format}")
    rows = (operands.rows(x), operands.scales(x))
    return ProductCall(QUANTIZED, (*packing(i, weight), *sizes), (*rows, *pointers))


def turned_heads(operands: Operands, work: CpuWork) -> tuple[Constants, Arguments]:
    """Constants and arguments that rotate queries and keys, and place them and the values."""
    turns, write = turns_of(work), work.member("kv_write")
    rope, out = turns[0].rope, operands.of(turns[0].rope, "out")
    table, slots = operands.of(rope, "table"), operands.of(write, "slots")
    weights = (operands.weight(operands.of(t.norm, "weight") if t.norm else None) for t in turns)
    scalars = scalars_of(turns[0].norm, "eps", "offset")
    norm = f"HeadNorm{{{', '.join((*weights, *scalars))}}}"
    where = (operands.rows(table), operands.input(slots.name), cache_of(operands, write))
    return (
        (out.shape[1], table.columns // 2, boolean(rope, "interleaved")),
        (*where, norm, operands.rows(out, const=False)),
    )


def activation_of(i: Instruction) -> str:
    kind = str(i.attrs["kind"])
    expect(i, kind in ACTIVATIONS, f"the activation {kind!r} is unknown")
    return ACTIVATIONS[kind]


def elementwise(operands: Operands, i: Instruction, *kind: str, scalar: str = "") -> KernelCall:
    buffers = [operands.plan.buffer(name) for name in i.inputs.values()]
    scalars = scalars_of(i, scalar) if scalar else ()
    arguments = (*map(operands.rows, buffers), *scalars, result(operands, i))
    return KernelCall(i.op, (buffers[0].columns, *kind), arguments)


def rounded_result(operands: Operands, cast: Instruction) -> tuple[int, Arguments]:
    """The block of a result in int8, and where its values and its scales go."""
    out = operands.of(cast, "out")
    rows = operands.rows(out, const=False), operands.scales(out, const=False)
    return out.format.block, rows


def result(operands: Operands, i: Instruction) -> str:
    return operands.rows(operands.of(i, "out"), const=False)


def cache_of(operands: Operands, i: Instruction) -> str:
    keys, values = operands.of(i, "k_cache"), operands.optional(i, "v_cache")
    if values is None:
        expect(i, keys.shape[1] == 1, f"{keys.shape[1]} heads of keys that are values, too")
        return operands.latent_cache(keys, int(i.attrs.get("value_size", keys.shape[-1])))
    whole = not keys.format.is_scaled or keys.format.block == keys.shape[-1]
    expect(i, whole, f"heads of {keys.shape[-1]} in {keys.format}")
    return operands.cache(keys, values)


def distances_of(operands: Operands, i: Instruction) -> tuple[int, str]:
    """The number of buckets of distances, and `Distances` with what is added for them."""
    given = {name: operands.optional(i, name) for name in ("bias", "q_bias", "k_bias", "buckets")}
    there = {name: buffer for name, buffer in given.items() if buffer}
    expect(
        i, {b.dtype for b in there.values()} == {"float32"}, "biases that are not all in float32"
    )
    expect(i, not {"bias", "q_bias"} <= there.keys(), "biases of heads and of queries")
    counts = {int(there[name].shape[-1]) for name in there.keys() - {"buckets"}}
    expect(i, len(counts) == 1, f"biases for {sorted(counts)} buckets")
    reach = int(operands.of(i, "buckets").shape[0]) // 2
    table, nothing = given["bias"], "Rows<const float>{}"
    rows = (operands.rows(b) if b else nothing for b in (given["q_bias"], given["k_bias"]))
    queries, keys = rows
    if table:  # the same row for all, of what is added to scores
        queries = f"Rows<const float>{{{operands.weight(table)}, 0}}"
    factor = number(1 / float(i.attrs["scale"]) if table else 1.0)
    buckets = operands.weight(given["buckets"])
    return counts.pop(), f"Distances{{{buckets}, {reach}, {queries}, {keys}, {factor}}}"


def norm_weight(operands: Operands, i: Instruction, size: int) -> str:
    weight = operands.of(i, "weight")
    expect(i, weight.dtype == "float32", f"the weight is {weight.dtype}, not float32")
    expect(i, weight.shape == (size,), f"a weight of {weight.shape} for rows of {size}")
    return operands.weight(weight)


def has_own_weights(operands: Operands, i: Instruction) -> bool:
    """Whether each head of a norm has a part of the weight, rather than all of it."""
    return operands.of(i, "weight").shape != (operands.of(i, "x").shape[-1],)


def same_row(operands: Operands, i: Instruction, name: str) -> str:
    """A weight as rows that are all the same."""
    weight = operands.of(i, name)
    expect(i, weight.dtype == "float32", f"the weight is {weight.dtype}, not float32")
    return f"Rows<const float>{{{operands.weight(weight)}, 0}}"


def packing(i: Instruction, weight: Buffer) -> tuple[int, str, int]:
    """Bits, group and block of a weight that is packed as weights.py says; beside the group, what
    a block has besides its scales. Blocks that lie together are one, of several groups."""
    form, columns = weight.format, int(weight.shape[-1])
    expect(i, fits(columns, form), f"weights in {form} in rows of {columns}")
    flags = {
        "with_zeros": form.zeros,
        "with_minimums": form.minimums,
        "with_codes": form.codes,
        "with_bytes": form.multiplier == BYTE,
        "with_scales": blocks_together(form) > 1,
    }
    grouping = (str(form.group), *(name for name, is_so in flags.items() if is_so))
    return form.bits, " | ".join(grouping), form.block * blocks_together(form)


def scalars_of(i: Instruction | None, *attributes: str) -> tuple[str, ...]:
    """Float attributes of an instruction; zeros if there is no instruction."""
    attrs = {} if i is None else i.attrs
    return tuple(number(float(attrs.get(attribute, 0.0))) for attribute in attributes)


def boolean(i: Instruction, attribute: str) -> str:
    return "true" if i.attrs[attribute] else "false"


def expect(i: Instruction, condition: bool, found: str) -> None:
    if not condition:
        raise CodegenError(f"{where(i)}: {found}", hint="No CPU kernel takes that combination.")
