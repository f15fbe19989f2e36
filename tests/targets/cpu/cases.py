"""The plans that the kernel tests run: constants that fill vectors and that do not.

A case adds a few primitives to a sketch, in the order of a plan, with weights of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial

import pytest
import torch

from ingot.artifact.formats import DType, Format, rounded_rows
from ingot.targets.cpu.kind import KIND
from tests.support import samples
from tests.support.core import core
from tests.targets.cpu.experts import integer_mixtures, mixtures, routers
from tests.targets.cpu.latent_cases import concats, head_linears, latents, reorders
from tests.targets.cpu.matrices import MATRICES, integers
from tests.targets.cpu.native import TARGETS, runnable
from tests.targets.cpu.record_cases import records_of
from tests.targets.cpu.segment_cases import pools_of, segments_of
from tests.targets.cpu.units import Case, Unit
from tests.targets.sketch import STEP, Sketch

TARGETS_OF = {
    "f32": tuple(name for name in TARGETS if "bf16" not in name),
    "bf16": TARGETS,
    "integer": runnable(
        *("cpu:x86-64-v4+amx_int8", "cpu:x86-64-v4+avx512_vnni", "cpu:x86-64-v4"),
        *("cpu:x86-64-v3+avx_vnni", "cpu:x86-64-v3", "cpu:portable"),
    ),
}
# Some cases of every kind, at every level of instructions, the best first.
PROGRAMS = tuple((kind, target) for kind, targets in TARGETS_OF.items() for target in targets)
BEST = tuple((kind, targets[0]) for kind, targets in TARGETS_OF.items())
# Attention over segments, which knows no earlier steps: not all tests of steps are for it. The
# order of columns is beside it.
SEGMENTS = ("segments", TARGETS[0])
# Mixers that keep one record of a sequence. Tests of steps over pages are not for them.
RECORDS = ("records", TARGETS[0])
# The other cases, which take twice as long to compile.
MORE = "more "
TARGETS_OF |= {f"{MORE}{kind}": TARGETS_OF[kind] for kind in ("f32", "bf16")}
TARGETS_OF |= {f"{MORE}integer": TARGETS_OF["integer"][:1]}


# What `make test-all` has as well: float32, also without vectors, bfloat16 and integers without
# tiles, bfloat16 that is multiplied as float32, and other cases of bfloat16.
FURTHER = (
    *(BEST[0], ("f32", TARGETS[-1]), ("bf16", TARGETS[1]), (f"{MORE}bf16", TARGETS[0])),
    *(("bf16", name) for name in TARGETS if name == "cpu:x86-64-v3"),
    ("integer", TARGETS_OF["integer"][1]),
)


def at_levels(*kinds: str) -> pytest.MarkDecorator:
    """Runs a test at every level of instructions. Where few tests are wanted, at the best alone:
    bfloat16 and integers, or else what there is."""
    chosen = [(kind, target) for kind in kinds for target in TARGETS_OF[kind]]
    best = [pair for pair in chosen if pair in BEST[1:]] or chosen[:1]
    further = [pair for pair in chosen if pair in FURTHER]
    return pytest.mark.parametrize("kind, target", core(*best, further=further, slow=chosen))


every_program = at_levels(*TARGETS_OF)
F32: DType = "float32"
DTYPES: dict[str, DType] = {"f32": "float32", "bf16": "bfloat16"}
KINDS = (
    *("silu", "gelu", "gelu_tanh", "relu", "relu2", "log1p_relu"),
    *("sigmoid", "tanh", "softplus", "identity"),
)
# The cases that run most often. Of floats: sizes that end within a vector, a panel and a page, and
# a product that is cut for the cache. Of integers: each storage, with groups that are filled and
# not.
OFTEN = (
    *("linear-27x27", "linear-200x144", "linear-4200x64", "linear-rounded", "linear-capped"),
    *("activated-27x200", "layer-quantize-200", "layer-cast-37"),
    *("gated-27x192", "rms-37", "rms-heads-3x80", "rms-quantize-200", "add-rms-37", "layer-37"),
    *("layer-heads-own-3x20", "rms-heads-own-3x20", "table-warm"),
    *("table-13", "rope-80", "rope-16", "rope-write-20", "rope-write-64-i8", "write-20"),
    *("write-20-i8", "heads-64-i8", "heads-128", "attention-12", "attention-80"),
    *("attention-80-i8", "attention-quantize-64", "gate-silu-37", "gelu-37", "add-37", "mul-37"),
    *(
        "gate-sigmoid-37",
        "softplus-37",
        "scale-37",
        "lerp-37",
        "bonus-37",
        "head_scale-37",
        "clamp-37",
    ),
    *("attention-80-sinks", "attention-quantize-64-sinks", "attention-128"),
    *("head-linear-20x27", "concat-20-37", "latent-36", "latent-20", "latent-window"),
    *("latent-quantize", "latent-20-i8", "latent-window-i8", "route-groups-24"),
    *("experts-3-1-200x27", "experts-33-4-36x20", "plain-experts-5-2-36x54"),
    *("soft_cap-37", "cast-37", "embedding-37", "select-37", "tied"),
    *("int8-b128-72x300", "int8-b50-33x50", "int8-b416-128x416", "int8-b64-zeros-96x192"),
    *("int4-g32-b128-72x330", "int4-g64-b128-256x256", "int4-b32-zeros-72x288"),
    *("int4-g32-b128-40x96", "int8-b128-33x10240", "int4-g32-b128-zeros-72x330"),
    *("experts-6-3-160x96-int4-b32", "experts-5-2-72x72-int8-b32"),
    *("plain-experts-5-2-64x128-int8-b64", "plain-experts-4-2-96x72-int4-b32"),
    *("int8-b128-72x300-fine", "int8-b416-128x416-fine", "int8-b64-zeros-96x192-fine"),
    *("int4-g32-b128-zeros-72x330-fine", "int4-g64-b128-zeros-256x256-fine"),
    *("experts-5-3-96x72-int4-b32-zeros", "int4-b32-minimums-72x288"),
    *("int4-g32-b128-m6-zeros-minimums-72x330", "int4-g16-b128-m6-zeros-minimums-40x330"),
    *("int6-g16-b128-m8-72x330", "int4-g32-b128-m8-codes-72x640", "int4-b16-72x330"),
    *("int4-b16-zeros-256x256", "int5-b16-zeros-72x330", "int4-b16-zeros-72x330-fine"),
)
TABLE_ROWS = 83  # of a table that a product shares: its last panel is not filled


@cache
def cases(kind: str) -> dict[str, Case]:
    """The cases that run most often, or the other ones of a kind; the last gives logits."""
    found = every_case(kind.removeprefix(MORE))
    if kind in (SEGMENTS[0], RECORDS[0]):
        return found
    wanted = (name for name in found if (name in OFTEN) != kind.startswith(MORE) or name == "head")
    return {name: found[name] for name in wanted}


@cache
def every_case(kind: str) -> dict[str, Case]:
    """Every kernel, every variant of it that is chosen at compile time."""
    if kind == SEGMENTS[0]:
        found = (*segments_of(F32), *pools_of(F32), *reorders(F32))
        return {**dict(found), "head": partial(head, kind="f32")}
    if kind == RECORDS[0]:
        return {**dict(records_of()), "head": partial(head, kind="f32")}
    others = floats(kind) if kind in DTYPES else (*integers(), *integer_mixtures())
    return {**dict(others), "head": partial(head, kind=kind)}


@cache
def unit(kind: str, target: str) -> Unit:
    """The cases of a kind for a target, compiled once a session."""
    return Unit(cases(kind), target)


@cache
def ungrouped(kind: str, target: str) -> Unit:
    """The same, every primitive by a kernel of its own."""
    return Unit(cases(kind), target, disable=KIND.rules)


def floats(kind: str) -> Iterator[tuple[str, Case]]:
    dtype = DTYPES[kind]
    for make in (linears, gated, activated, norms, ropes, elementwise, gathers, routers, mixtures):
        yield from make(dtype)
    for make in (head_linears, concats):
        yield from make(dtype)
    for make in (heads, products_of_heads, attentions, latents):
        yield from make(dtype, dtype)
        # Every other one: these take longest to compile.
        for name, case in list(make(dtype, "int8"))[::2]:
            yield f"{name}-i8", case


def matrix(s: Sketch, outputs: int, inputs: int, dtype: DType) -> str:
    value = samples.weight(s.drawn("weight"), outputs, inputs, getattr(torch, dtype))
    return s.weight("weight", value)


def linears(dtype: DType) -> Iterator[tuple[str, Case]]:
    """Odd K, narrow last panels, several panels, and a K that is cut for the cache."""
    for inputs, outputs, extended in (
        *((64, 64, False), (27, 27, True), (200, 144, True), (96, 304, False), (4200, 64, False)),
    ):

        def case(s: Sketch, inputs: int = inputs, outputs: int = outputs,
                 extended: bool = extended) -> None:  # fmt: skip
            x, weight = s.rows("x", inputs, form=dtype), matrix(s, outputs, inputs, dtype)
            bias = s.vector("bias", outputs) if extended else None
            if not extended:
                s.call("linear", x, weight, bias, form=F32)
                return
            made = s.call("linear", x, weight, bias, out="made")
            # The residual stream may stand on either side.
            operands = (s.rows("residual", outputs), made)
            s.call("add", *(operands if outputs == 27 else operands[::-1]))

        yield f"linear-{inputs}x{outputs}", case

    def rounded(s: Sketch) -> None:
        x, weight = s.rows("x", 27, form=dtype), matrix(s, 33, 27, dtype)
        s.call("linear", x, weight, s.vector("bias", 33), form=dtype)

    def capped(s: Sketch) -> None:
        x, weight = s.rows("x", 27, form=dtype), matrix(s, 83, 27, dtype)
        made = s.call("linear", x, weight, s.vector("bias", 83), out="made")
        s.call("soft_cap", made, cap=1.5, form=dtype)

    yield "linear-rounded", rounded
    yield "linear-capped", capped


def gated(dtype: DType) -> Iterator[tuple[str, Case]]:
    """One unit and several, and a K that is cut for the cache."""

    def case(s: Sketch, inputs: int, size: int, with_bias: bool, kind: str) -> None:
        x, weight = s.rows("x", inputs, form=dtype), matrix(s, 2 * size, inputs, dtype)
        bias = s.vector("bias", 2 * size) if with_bias else None
        made = s.call("linear", x, weight, bias, out="made")
        halves = (s.view(n, made, first, size) for n, first in (("gate", 0), ("up", size)))
        s.call("gate", *halves, kind=kind, form=F32 if size == 192 else dtype)

    for inputs, size, with_bias, kind in (
        *((96, 64, False, "relu"), (27, 192, True, "gelu"), (4200, 64, False, "silu")),
        (64, 256, False, "gelu_tanh"),
    ):
        yield (
            f"gated-{inputs}x{size}",
            partial(case, inputs=inputs, size=size, with_bias=with_bias, kind=kind),
        )


def activated(dtype: DType) -> Iterator[tuple[str, Case]]:
    """Columns that end within a vector, and a K that is cut for the cache."""

    def case(s: Sketch, inputs: int, size: int, kind: str) -> None:
        x, weight = s.rows("x", inputs, form=dtype), matrix(s, size, inputs, dtype)
        made = s.call("linear", x, weight, s.vector("bias", size), out="made")
        s.call("activation", made, kind=kind, form=dtype)

    for inputs, size, kind in ((27, 200, "gelu"), (4200, 37, "gelu_tanh")):
        yield f"activated-{inputs}x{size}", partial(case, inputs=inputs, size=size, kind=kind)


def norms(dtype: DType) -> Iterator[tuple[str, Case]]:
    """An epsilon that counts, and one that does not."""

    def rms(s: Sketch, size: int, offset: float, eps: float) -> None:
        x, weight = s.rows("x", size), s.vector("weight", size)
        s.call("rms_norm", x, weight, eps=eps, offset=offset, form=dtype)

    def rounded(s: Sketch, size: int, offset: float, eps: float, block: int) -> None:
        x, weight = s.rows("x", size), s.vector("weight", size)
        normed = s.call("rms_norm", x, weight, out="normed", eps=eps, offset=offset)
        s.call("cast", normed, form=rounded_rows(block))

    def add(s: Sketch, size: int, offset: float, eps: float) -> None:
        x, y = (s.rows(name, size) for name in "xy")
        total = s.call("add", x, y, out="sum")
        s.call("rms_norm", total, s.vector("weight", size), eps=eps, offset=offset, form=dtype)

    def layer(s: Sketch, size: int, with_bias: bool, eps: float) -> None:
        bias = s.vector("bias", size) if with_bias else None
        x, weight = s.rows("x", size), s.vector("weight", size)
        s.call("layer_norm", x, weight, bias, eps=eps, form=dtype)

    def layer_twice(s: Sketch, size: int, form: Format | str, kept: bool) -> None:
        x = s.rows("x", size)
        normed = s.call("layer_norm", x, s.vector("weight", size), None, out="normed", eps=1e-5)
        s.call("cast", normed, form=form)
        if kept:
            s.call("add", normed, x, out="sum")

    def of_heads(s: Sketch) -> None:
        x, weight = s.rows("x", 3, 80), s.vector("weight", 80)
        s.call("rms_norm", x, weight, eps=1e-5, offset=1.0, form=dtype)

    def with_own_weights(s: Sketch) -> None:
        weight = s.vector("weight", 60)
        s.call("rms_norm", s.rows("x", 3, 20), weight, eps=1e-5, offset=0.0, form=dtype)

    def layers_of_heads(s: Sketch, own: bool, with_bias: bool = False) -> None:
        size = 60 if own else 20
        weight, bias = s.vector("weight", size), s.vector("bias", size) if with_bias else None
        s.call("layer_norm", s.rows("x", 3, 20), weight, bias, eps=1e-5, form=dtype)

    for size, offset, eps, block in (
        (37, 0.0, 0.1, 37),
        (200, 1.0, 1e-5, 40),
        (1024, 0.0, 1e-5, 128),
    ):
        constants = {"size": size, "offset": offset, "eps": eps}
        yield f"rms-{size}", partial(rms, **constants)
        yield f"add-rms-{size}", partial(add, **constants)
        yield f"layer-{size}", partial(layer, size=size, with_bias=offset > 0, eps=eps)
        if dtype != F32:  # once: no operand has the other dtype
            yield f"rms-quantize-{size}", partial(rounded, **constants, block=block)
            for name, form in (("quantize", rounded_rows(block)), ("cast", dtype)):
                twice = partial(layer_twice, size=size, form=form, kept=offset > 0)
                yield f"layer-{name}-{size}", twice
    yield "rms-heads-3x80", of_heads
    yield "rms-heads-own-3x20", with_own_weights
    yield "layer-heads-3x20", partial(layers_of_heads, own=False)
    yield "layer-heads-own-3x20", partial(layers_of_heads, own=True)
    yield "layer-heads-own-bias-3x20", partial(layers_of_heads, own=True, with_bias=True)


def ropes(dtype: DType) -> Iterator[tuple[str, Case]]:
    def table(s: Sketch, half: int, theta: float, **warm: float) -> None:
        frequencies = s.weight("inv_freq", 1.0 / theta ** (torch.arange(half) / half))
        s.call("rope_table", "positions", frequencies, scale=1.25, **warm)

    def rope(s: Sketch, heads: int, size: int, rotated: int, interleaved: bool) -> None:
        x, table = s.rows("x", heads, size), s.rows("table", rotated)
        s.call("rope", x, table, interleaved=interleaved, form=dtype)

    for half, theta in ((13, 5e5), (64, 1e6)):
        yield f"table-{half}", partial(table, half=half, theta=theta)
    yield "table-warm", partial(table, half=16, theta=1e6, temperature=0.3, length=5)
    for heads, size, rotated, interleaved in (
        *((2, 64, 64, False), (3, 80, 32, False), (1, 16, 12, True)),
    ):
        sizes = {"heads": heads, "size": size, "rotated": rotated}
        yield f"rope-{size}", partial(rope, **sizes, interleaved=interleaved)


def cached(dtype: DType, size: int) -> Format:
    return rounded_rows(size) if dtype == "int8" else Format(dtype)


@dataclass(frozen=True)
class Heads:
    """Queries, keys and values on their way to attention, which reads what was written."""

    heads: int
    kv_heads: int
    size: int
    rotated: int
    interleaved: bool = False
    norm_offset: float | None = None  # None for no norm
    window: int = 0
    inputs: int = 0  # of the product that makes them; 0 for none
    with_bias: bool = False

    def case(self, s: Sketch, dtype: DType, kept: DType) -> None:
        counts = {"q": self.heads, "k": self.kv_heads, "v": self.kv_heads}
        q, k, v = self._made(s, counts, dtype) if self.inputs else (
            s.rows(name, count, self.size) for name, count in counts.items()
        )  # fmt: skip
        if self.norm_offset is not None:
            norm = {"eps": 1e-2, "offset": self.norm_offset}
            q, k = (
                s.call(
                    "rms_norm",
                    x,
                    s.vector(f"{name}_norm", self.size),
                    out=f"normed_{name}",
                    **norm,
                )
                for name, x in (("q", q), ("k", k))
            )
        table, turn = s.rows("table", self.rotated), {"interleaved": self.interleaved}
        q = s.call("rope", q, table, out="turned", form=dtype, **turn)
        k = s.call("rope", k, table, out="turned_k", **turn)
        caches = s.caches(self.kv_heads, self.size, cached(kept, self.size))
        s.call("kv_write", k, v, "slots", *caches)
        s.call("paged_attention", q, *caches, *STEP, scale=self.size**-0.5, window=self.window,
               rounds_queries=kept == "int8", out="attended", form=dtype)  # fmt: skip

    def _made(self, s: Sketch, counts: dict[str, int], dtype: DType) -> Iterator[str]:
        """By a product, side by side."""
        outputs, first = sum(counts.values()) * self.size, 0
        bias = s.vector("bias", outputs) if self.with_bias else None
        x = s.rows("x", self.inputs, form=dtype)
        made = s.call("linear", x, matrix(s, outputs, self.inputs, dtype), bias, out="made")
        for name, count in counts.items():
            yield s.view(name, made, first, count, self.size)
            first += count * self.size


def heads(dtype: DType, kept: DType) -> Iterator[tuple[str, Case]]:
    for each in (
        Heads(4, 2, 64, 64, norm_offset=1.0),
        Heads(3, 3, 20, 12, interleaved=True, window=5),
        Heads(4, 2, 128, 96),
    ):
        yield f"rope-write-{each.size}", partial(each.case, dtype=dtype, kept=kept)

    def write(s: Sketch, kv_heads: int, size: int, page_size: int) -> None:
        k, v = (s.rows(name, kv_heads, size) for name in "kv")
        s.call("kv_write", k, v, "slots", *s.caches(kv_heads, size, cached(kept, size), page_size))

    for kv_heads, size, page_size in ((2, 64, 16), (1, 20, 32)):
        yield f"write-{size}", partial(write, kv_heads=kv_heads, size=size, page_size=page_size)


def products_of_heads(dtype: DType, kept: DType) -> Iterator[tuple[str, Case]]:
    """Heads of one panel and of several, one input row off the vectors."""
    for each in (
        Heads(4, 2, 64, 64, norm_offset=0.0, inputs=40),
        Heads(6, 1, 192, 20, norm_offset=1.0, inputs=64, interleaved=True),
        Heads(4, 2, 128, 96, inputs=27, with_bias=True),
    ):
        yield f"heads-{each.size}", partial(each.case, dtype=dtype, kept=kept)


def attentions(dtype: DType, kept: DType) -> Iterator[tuple[str, Case]]:
    """Groups of 1 to 8 queries, head sizes off the vectors, pages of 1 to 4 key groups; most of
    them without sinks and with them."""

    def case(
        s: Sketch, heads: int, kv_heads: int, size: int, page_size: int, window: int,
        softcap: float, block: int = 0, with_sinks: bool = False,
    ) -> None:  # fmt: skip
        q = s.rows("q", heads, size, form=dtype)
        caches = s.caches(kv_heads, size, cached(kept, size), page_size)
        scalars = {"scale": size**-0.5, "window": window, "softcap": softcap}
        scalars["rounds_queries"] = kept == "int8"
        form = F32 if block else dtype
        logits = 3 * samples.normal(s.drawn("sinks"), heads)
        sinks = s.weight("sinks", logits) if with_sinks else None
        out = s.call(
            "paged_attention", q, *caches, *STEP, sinks, **scalars, out="attended", form=form
        )
        if block:
            row = s.view("row", out, 0, heads * size)
            s.call("cast", row, form=rounded_rows(block))

    shapes = (
        (2, 2, 32, 48, 0, 0.0),
        (6, 1, 12, 32, 20, 30.0),
        (14, 2, 80, 16, 0, 0.0),
        (2, 1, 96, 64, 100, 0.0),
    )
    # Half as many in float32: these take longest to compile.
    made = {
        f"attention-{size}": partial(
            case, heads=heads, kv_heads=kv_heads, size=size, page_size=page_size, window=window,
            softcap=softcap,
        )
        for heads, kv_heads, size, page_size, window, softcap in shapes[:: 2 if dtype == F32 else 1]
    }  # fmt: skip
    made["attention-quantize-64"] = partial(
        case, heads=4, kv_heads=2, size=64, page_size=16, window=0, softcap=0.0, block=32
    )
    for name, each in made.items():
        yield name, each
        yield f"{name}-sinks", partial(each, with_sinks=True)
    if dtype == kept == "bfloat16":  # sizes of which matrix units take several tiles
        sizes = {"heads": 8, "kv_heads": 1, "page_size": 16}
        yield "attention-128", partial(case, **sizes, size=128, window=37, softcap=5.0)
        yield "attention-256", partial(case, **sizes, size=256, window=0, softcap=0.0)


def elementwise(dtype: DType) -> Iterator[tuple[str, Case]]:
    other: DType = F32 if dtype == "bfloat16" else "bfloat16"

    def gate(s: Sketch, size: int, kind: str) -> None:
        s.call("gate", s.rows("gate", size), s.rows("up", size), kind=kind, form=dtype)

    def activation(s: Sketch, size: int, kind: str) -> None:
        s.call("activation", s.rows("x", size), kind=kind, form=dtype)

    def add(s: Sketch, size: int) -> None:
        s.call("add", s.rows("x", size), s.rows("y", size))

    def mul(s: Sketch, size: int) -> None:
        s.call("mul", s.rows("x", size), factor=3.7, form=dtype)

    def scale(s: Sketch, size: int) -> None:
        s.call("scale", s.rows("x", size), s.vector("weight", size), form=dtype)

    def lerp(s: Sketch, size: int) -> None:
        x, y, share = (s.rows(name, size) for name in ("x", "y", "share"))
        towards = s.call("lerp", x, y, share, None, out="towards")
        s.call("lerp", x, towards, None, s.vector("weight", size), form=dtype)

    def bonus(s: Sketch, size: int) -> None:
        q, k, v = s.rows("q", 3, size), s.rows("k", 3, size), s.rows("v", 3, size + 3)
        s.call("bonus", q, k, v, s.vector("weight", 3 * size), form=dtype)

    def head_scale(s: Sketch, size: int) -> None:
        s.call("head_scale", s.rows("x", 3, size), s.rows("share", 3), form=dtype)

    def clamp(s: Sketch, size: int) -> None:
        s.call("clamp", s.rows("x", size), low=-0.3, high=0.7, form=dtype)

    def soft_cap(s: Sketch, size: int) -> None:
        s.call("soft_cap", s.rows("x", size), cap=0.75, form=dtype)

    def cast(s: Sketch, size: int) -> None:
        s.call("cast", s.rows("x", size, form=dtype), form=other)

    for size in (37, 200):
        for kind in KINDS:
            yield f"gate-{kind}-{size}", partial(gate, size=size, kind=kind)
            yield f"{kind}-{size}", partial(activation, size=size, kind=kind)
        for each in (add, mul, scale, head_scale, lerp, bonus, clamp, soft_cap, cast):
            yield f"{each.__name__}-{size}", partial(each, size=size)


def gathers(dtype: DType) -> Iterator[tuple[str, Case]]:
    """Tables as rows and, where a product shares them, as panels."""

    def embedding(s: Sketch, size: int) -> None:
        s.call("embedding", "tokens", matrix(s, TABLE_ROWS, size, dtype))

    def select(s: Sketch, size: int) -> None:
        s.call("select_rows", s.rows("x", size, form=dtype), "logit_rows", form=dtype)

    def tied(s: Sketch) -> None:
        weight = matrix(s, TABLE_ROWS, 40, dtype)
        s.call("linear", s.rows("x", 40, form=dtype), weight, out="product")
        s.call("embedding", "tokens", weight, out="row")

    for size in (37, 200):
        yield f"embedding-{size}", partial(embedding, size=size)
        yield f"select-{size}", partial(select, size=size)
    yield "tied", tied


def head(s: Sketch, kind: str) -> None:
    """The end of a step: logits of the rows that are asked for."""
    if kind in DTYPES:
        dtype = DTYPES[kind]
        x = s.rows("x", 96, form=dtype)
        chosen = s.call("select_rows", x, "logit_rows", out="chosen", form=dtype)
        weight = matrix(s, 304, 96, dtype)
        s.call("linear", chosen, weight, into=s.logits(304))
        return
    m = MATRICES[1]
    chosen = s.call("select_rows", s.rows("x", m.inputs), "logit_rows", out="chosen")
    weight = s.weight("weight", m.drawn(s.drawn("weight")), m.form)
    made = s.call("linear", chosen, weight, out="made")
    s.call("soft_cap", made, cap=2.0, into=s.logits(m.outputs))
