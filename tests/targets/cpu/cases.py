"""The calls that the kernel tests make: constants that fill vectors and that do not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from tests.support import samples
from tests.targets.cpu.units import VOCABULARY, Case, Unit

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
F32 = torch.float32
NORMS = ("q_norm", "k_norm")


@cache
def all_cases() -> tuple[Case, ...]:
    """Every kernel, every variant of it that is chosen at compile time."""
    rng = torch.Generator().manual_seed(0)
    cases = []
    for suffix, dtype in DTYPES.items():
        for make in (
            linears,
            gated,
            norms,
            ropes,
            writes,
            head_products,
            attentions,
            elementwise,
            gathers,
        ):
            cases += [_named(case, suffix) for case in make(rng, dtype)]
        for make in (writes, head_products, attentions):
            in_int8 = [_with_cache(case, torch.int8) for case in make(rng, dtype)]
            # Every other one: these take longest to compile.
            cases += [_named(case, f"i8-{suffix}") for case in in_int8[::2]]
    return tuple(cases)


@cache
def unit(target: str) -> Unit:
    """All cases for a target, compiled once a session."""
    return Unit(all_cases(), target)


def _named(case: Case, suffix: str) -> Case:
    shares = {a: key.replace(".", f"-{suffix}.") for a, key in case.shares.items()}
    return replace(case, name=f"{case.name}-{suffix}", shares=shares)


def _with_cache(case: Case, dtype: torch.dtype) -> Case:
    assert case.caches is not None
    *shape, _ = case.caches
    return replace(case, caches=(*shape, dtype))


def linears(rng: torch.Generator, dtype: torch.dtype) -> Iterator[Case]:
    """Odd K, narrow last panels, several panels, and a K that is cut for the cache."""
    for inputs, outputs, extended in (
        *((64, 64, False), (27, 27, True), (200, 144, True), (96, 304, False), (4200, 64, False)),
    ):
        weights = {"weight": samples.weight(rng, outputs, inputs, dtype)}
        if extended:
            weights["bias"] = samples.normal(rng, outputs)
        residual = {"residual": ((outputs,), F32)} if extended else {}
        yield Case(
            name=f"linear-{inputs}x{outputs}",
            op="linear",
            weights=weights,
            rows={"x": ((inputs,), dtype), **residual},
            attrs={"out_dtype": F32 if outputs != 27 else dtype},
        )


def gated(rng: torch.Generator, dtype: torch.dtype) -> Iterator[Case]:
    """One unit and several, and a K that is cut for the cache."""
    for inputs, size, with_bias, kind in (
        *((96, 64, False, "relu"), (27, 192, True, "gelu"), (4200, 64, False, "silu")),
        (64, 256, False, "gelu_tanh"),
    ):
        weights = {"weight": samples.weight(rng, 2 * size, inputs, dtype)}
        absent: dict[str, object] = {"bias": None}
        if with_bias:
            weights["bias"], absent = samples.normal(rng, 2 * size), {}
        yield Case(
            name=f"gated-{inputs}x{size}",
            op="gated_linear",
            weights=weights,
            rows={"x": ((inputs,), dtype)},
            attrs={"kind": kind, "out_dtype": F32 if size == 192 else dtype, **absent},
        )


def norms(rng: torch.Generator, dtype: torch.dtype) -> Iterator[Case]:
    for size, offset, group in ((37, 0.0, 37), (200, 1.0, 40), (1024, 0.0, 128)):
        weights = {"weight": samples.scale_vector(rng, size)}
        attrs = {"eps": 1e-5, "offset": offset, "out_dtype": dtype}
        x = ((size,), F32)
        yield Case(name=f"rms-{size}", op="rms_norm", weights=weights, rows={"x": x}, attrs=attrs)
        if dtype == F32:
            yield Case(
                name=f"rms-quantize-{size}",
                op="rms_norm_quantize",
                weights=weights,
                rows={"x": x},
                attrs={"eps": 1e-5, "offset": offset, "group": group},
            )
        yield Case(
            name=f"add-rms-{size}",
            op="add_rms_norm",
            weights=weights,
            rows={"x": x, "residual": x},
            attrs=attrs,
        )
        with_bias = {**weights, "bias": samples.normal(rng, size)} if offset else weights
        yield Case(
            name=f"layer-{size}",
            op="layer_norm",
            weights=with_bias,
            rows={"x": x},
            attrs={"eps": 1e-5, "out_dtype": dtype, **({} if offset else {"bias": None})},
        )
    yield Case(
        name="rms-heads-3x80",
        op="rms_norm",
        weights={"weight": samples.scale_vector(rng, 80)},
        rows={"x": ((3, 80), F32)},
        attrs={"eps": 1e-5, "offset": 1.0, "out_dtype": dtype},
    )


def ropes(rng: torch.Generator, dtype: torch.dtype) -> Iterator[Case]:
    for half, theta in ((13, 5e5), (64, 1e6)):
        yield Case(
            name=f"table-{half}",
            op="rope_table",
            weights={"inv_freq": _frequencies(half, theta)},
            attrs={"scale": 1.25},
        )
    for heads, size, rotated, interleaved in (
        (2, 64, 64, False),
        (3, 80, 32, False),
        (1, 16, 12, True),
    ):
        yield Case(
            name=f"rope-{size}",
            op="rope",
            rows={"x": ((heads, size), F32), "table": ((rotated,), F32)},
            attrs={"interleaved": interleaved, "out_dtype": dtype},
        )


def writes(rng: torch.Generator, dtype: torch.dtype) -> Iterator[Case]:
    for heads, kv_heads, size, rotated, with_norm, interleaved, page_size in (
        (4, 2, 64, 64, True, False, 16),
        (3, 1, 20, 12, False, True, 32),
        (2, 2, 128, 96, False, False, 16),
    ):
        names = NORMS if with_norm else ()
        kv = ((kv_heads, size), F32)
        yield Case(
            name=f"rope-write-{size}",
            op="rope_kv_write",
            weights={name: samples.scale_vector(rng, size) for name in names},
            rows={"q": ((heads, size), F32), "k": kv, "v": kv, "table": ((rotated,), F32)},
            caches=(kv_heads, page_size, size, dtype),
            attrs={"eps": 1e-6, "interleaved": interleaved, "out_dtype": dtype},
        )
        yield Case(
            name=f"write-{size}",
            op="kv_write",
            rows={"k": kv, "v": kv},
            caches=(kv_heads, page_size, size, dtype),
        )


def head_products(rng: torch.Generator, dtype: torch.dtype) -> Iterator[Case]:
    """Heads of one panel and of several, one input row off the vectors."""
    for inputs, heads, kv_heads, size, rotated, with_norm, with_bias in (
        (40, 4, 2, 64, 64, True, False),
        (27, 3, 3, 128, 96, False, True),
        (64, 6, 1, 192, 20, True, False),
    ):
        outputs = (heads + 2 * kv_heads) * size
        weights = {"weight": samples.weight(rng, outputs, inputs, dtype)}
        weights |= {n: samples.scale_vector(rng, size) for n in NORMS if with_norm}
        weights |= {"bias": samples.normal(rng, outputs)} if with_bias else {}
        yield Case(
            name=f"heads-{size}",
            op="linear_rope_kv_write",
            weights=weights,
            rows={"x": ((inputs,), dtype), "table": ((rotated,), F32)},
            caches=(kv_heads, 16, size, dtype),
            attrs={
                **({} if with_bias else {"bias": None}),
                **{"eps": 1e-6, "interleaved": size == 192, "out_dtype": dtype},
            },
        )


def attentions(rng: torch.Generator, dtype: torch.dtype) -> Iterator[Case]:
    """Groups of 1 to 7 queries, head sizes off the vectors, pages of 1 to 4 key groups."""
    shapes = (
        (2, 2, 32, 16, 0, 0.0),
        (4, 2, 128, 16, 0, 0.0),
        (6, 1, 12, 32, 20, 30.0),
        (14, 2, 80, 16, 0, 0.0),
        (3, 3, 20, 48, 5, 0.0),
        (2, 1, 96, 64, 100, 0.0),
    )
    # Half as many in float32: these take longest to compile.
    for heads, kv_heads, size, page_size, window, softcap in shapes[:: 2 if dtype == F32 else 1]:
        yield Case(
            name=f"attention-{size}",
            op="paged_attention",
            rows={"q": ((heads, size), dtype)},
            caches=(kv_heads, page_size, size, dtype),
            attrs={"scale": size**-0.5, "window": window, "softcap": softcap, "out_dtype": dtype},
        )
    yield Case(
        name="attention-quantize-64",
        op="paged_attention_quantize",
        rows={"q": ((4, 64), dtype)},
        caches=(2, 16, 64, dtype),
        attrs={"scale": 0.125, "group": 32},
    )


def elementwise(rng: torch.Generator, dtype: torch.dtype) -> Iterator[Case]:
    for size in (37, 200):
        one = ((size,), F32)
        gate = {"gate": one, "up": one}
        out = {"out_dtype": dtype}
        yield Case(name=f"silu-mul-{size}", op="silu_mul", rows=gate, attrs=out)
        yield Case(name=f"relu-mul-{size}", op="relu_mul", rows=gate, attrs=out)
        for tanh in (False, True):
            yield Case(
                name=f"gelu-mul-{size}-{tanh}", op="gelu_mul", rows=gate, attrs={"tanh": tanh} | out
            )
        for kind in ("silu", "gelu", "gelu_tanh", "relu"):
            yield Case(
                name=f"{kind}-{size}", op="activation", rows={"x": one}, attrs={"kind": kind} | out
            )
        yield Case(name=f"add-{size}", op="add", rows={"x": one, "y": one})
        other = F32 if dtype == torch.bfloat16 else torch.bfloat16
        yield Case(
            name=f"cast-{size}", op="cast", rows={"x": ((size,), dtype)}, attrs={"out_dtype": other}
        )


def gathers(rng: torch.Generator, dtype: torch.dtype) -> Iterator[Case]:
    """Tables as rows and, where a linear shares them, as panels."""
    for size in (37, 200):
        yield Case(
            name=f"embedding-{size}",
            op="embedding",
            weights={"weight": samples.normal(rng, VOCABULARY, size, dtype=dtype)},
            attrs={"out_dtype": F32},
        )
        yield Case(name=f"select-{size}", op="select_rows", rows={"x": ((size,), dtype)})
    yield Case(
        name="head",
        op="linear",
        weights={"weight": samples.normal(rng, VOCABULARY, 40, dtype=dtype)},
        rows={"x": ((40,), dtype)},
        attrs={"out_dtype": F32},
    )
    yield Case(
        name="tied",
        op="embedding",
        shares={"weight": "head.weight"},
        attrs={"out_dtype": F32},
    )


def _frequencies(half: int, theta: float) -> Tensor:
    return 1.0 / theta ** (torch.arange(half) / half)
