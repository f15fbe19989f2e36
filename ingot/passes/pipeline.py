"""The pipeline: every pass from the exported graph to primitives over the cache, in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial

import torch

from ingot.artifact.formats import Storage
from ingot.artifact.programs import ENCODE, HIDDEN, STEP, TOKENS, Program
from ingot.errors import UsageError
from ingot.ops import OPS
from ingot.passes.canonicalize_casts import canonicalize_casts
from ingot.passes.canonicalize_heads import canonicalize_heads
from ingot.passes.canonicalize_ops import canonicalize_ops
from ingot.passes.canonicalize_positions import canonicalize_positions
from ingot.passes.canonicalize_rows import canonicalize_rows
from ingot.passes.canonicalize_spellings import canonicalize_spellings
from ingot.passes.canonicalize_views import canonicalize_views
from ingot.passes.declaration import DTYPES, Pass
from ingot.passes.fuse_attention import fuse_attention
from ingot.passes.fuse_gates import fuse_gates
from ingot.passes.fuse_layer_norm import fuse_layer_norm
from ingot.passes.fuse_rms_norm import fuse_rms_norm
from ingot.passes.fuse_rope import fuse_rope
from ingot.passes.fuse_rope_table import fuse_rope_table
from ingot.passes.fuse_soft_cap import fuse_soft_cap
from ingot.passes.graph import aten
from ingot.passes.invariants import (
    canonical_views,
    no_noise,
    only_known_ops,
    rows_selected,
    step_inputs,
    tokens_before_heads,
    typed,
)
from ingot.passes.lower_activations import lower_activations
from ingot.passes.lower_dtypes import lower_dtypes
from ingot.passes.lower_experts import lower_experts
from ingot.passes.lower_quotients import lower_quotients
from ingot.passes.lower_scalars import lower_scalars
from ingot.passes.lower_scales import lower_scales
from ingot.passes.merge_linears import merge_linears
from ingot.passes.rewrite_attention import rewrite_attention
from ingot.passes.select_logit_rows import select_logit_rows

# Relative errors of the logits that verification allows a pass that is not bitwise.
REGROUPED = 1e-5  # the same arithmetic in another order, as in PyTorch's own matmul
# The same of values stored in 16 bits, of which 8 are digits, or 11.
NARROW = {"bfloat16": (torch.bfloat16, 3e-2), "float16": (torch.float16, 4e-3)}

# One spelling for every idea.
SPELLINGS: tuple[Pass, ...] = (
    Pass(function=canonicalize_casts, gives=(no_noise,)),
    Pass(function=canonicalize_views, needs=(no_noise,), gives=(canonical_views,)),
    Pass(function=canonicalize_rows, needs=(canonical_views,)),
    Pass(function=canonicalize_positions, needs=(canonical_views,)),
    Pass(function=canonicalize_ops, needs=(canonical_views,)),
    Pass(function=canonicalize_spellings, needs=(canonical_views,), tolerance=REGROUPED),
)
# Arithmetic to primitives.
PRIMITIVES: tuple[Pass, ...] = (
    Pass(
        function=fuse_rms_norm,
        needs=(canonical_views,),
        expect="rms_norm",
        anchors=(aten.rsqrt.default, aten.rms_norm.default, aten.mean.dim),
    ),
    Pass(
        function=fuse_layer_norm,
        needs=(canonical_views,),
        expect="layer_norm",
        anchors=(aten.layer_norm.default,),
    ),
    Pass(
        function=fuse_rope_table,
        needs=(canonical_views,),
        expect="rope_table",
        anchors=(aten.cos.default, aten.sin.default),
    ),
    Pass(
        function=fuse_rope,
        needs=(canonical_views,),
        expect="rope",
        anchors=(aten.neg.default, aten.sub.Tensor, aten.stack.default),
    ),
    Pass(
        function=fuse_attention,
        needs=(canonical_views,),
        expect="attention",
        tolerance=REGROUPED,
        anchors=(aten.scaled_dot_product_attention.default, aten.softmax.int),
    ),
    Pass(function=canonicalize_heads, needs=(canonical_views,), gives=(tokens_before_heads,)),
    Pass(
        function=fuse_gates,
        expect="gate",
        anchors=(aten.silu.default, aten.gelu.default, aten.relu.default, aten.sigmoid.default),
    ),
    Pass(
        function=lower_activations,
        expect="activation",
        anchors=(aten.silu.default, aten.gelu.default, aten.relu.default, aten.sigmoid.default),
    ),
    Pass(function=fuse_soft_cap, expect="soft_cap", anchors=(aten.tanh.default,)),
    Pass(function=lower_quotients, tolerance=REGROUPED),
    Pass(function=lower_scalars, expect="scale", anchors=(aten.mul.Tensor,)),
    Pass(function=lower_scales, expect="mul", anchors=(aten.mul.Tensor, aten.mul.Scalar)),
)
# Fewer, larger products.
PRODUCTS: tuple[Pass, ...] = (
    Pass(
        function=merge_linears,
        expect="merged_linears",
        tolerance=REGROUPED,
        anchors=(OPS["linear"].overload,),
        optional=True,
    ),
)
# From one sequence to a step of many.
MANY = Pass(
    function=rewrite_attention,
    needs=(tokens_before_heads,),
    gives=(step_inputs,),
    expect="attention",
    tolerance=REGROUPED,
)
TEXTS = replace(MANY, gives=(step_inputs, rows_selected, only_known_ops))
# Rows of a step, before what experts make in between has a place.
CHOSEN: tuple[Pass, ...] = (
    Pass(
        function=select_logit_rows,
        needs=(step_inputs,),
        gives=(rows_selected, only_known_ops),
        expect=1,
        tolerance=REGROUPED,
    ),
)
EXPERTS = Pass(function=lower_experts, expect="experts", anchors=(OPS["experts"].overload,))
# Where values are rounded.
ROUNDING: tuple[Pass, ...] = (
    Pass(
        function=lower_dtypes,
        needs=(rows_selected, only_known_ops),
        gives=(typed,),
        tier="numeric",
        tolerance=max(error for _, error in NARROW.values()),
        dtypes=tuple(NARROW),
    ),
)

PIPELINES: Mapping[str, tuple[Pass, ...]] = {
    STEP.name: (*SPELLINGS, *PRIMITIVES, *PRODUCTS, MANY, *CHOSEN, EXPERTS, *ROUNDING),
    HIDDEN.name: (*SPELLINGS, *PRIMITIVES, *PRODUCTS, MANY, *CHOSEN, EXPERTS, *ROUNDING),
    ENCODE.name: (*SPELLINGS, *PRIMITIVES, *PRODUCTS, TEXTS, EXPERTS, *ROUNDING),
    TOKENS.name: (*SPELLINGS, *PRIMITIVES, *PRODUCTS, TEXTS, EXPERTS, *ROUNDING),
}
PIPELINE = PIPELINES[STEP.name]


def pipeline(
    program: Program = STEP,
    *,
    dtype: str = "float32",
    disable: Sequence[str] = (),
    integers: Set[str] = frozenset(),
    kept: Mapping[str, Storage] | None = None,
) -> list[Pass]:
    """The passes of a program.

    Args:
        dtype: what weights and activations are stored in, one of DTYPES.
        disable: names of optional passes to leave out.
        integers: the model's parameters that are to be stored in integers.
        kept: how those are stored that a checkpoint has so already.

    Raises:
        UsageError: a dtype that is none.
    """
    if dtype not in DTYPES:
        raise UsageError(
            f"dtype {dtype!r} cannot be lowered to", hint=f"Supported: {', '.join(DTYPES)}."
        )
    own: dict[str, Callable[[Pass], Pass]] = {
        "lower_dtypes": partial(rounding, dtype=dtype, integers=integers),
        "merge_linears": partial(merging, kept=kept or {}),
    }
    chosen = [
        each
        for each in PIPELINES[program.name]
        if dtype in each.dtypes and each.name not in disable
    ]
    return [own[each.name](each) if each.name in own else each for each in chosen]


def merging(each: Pass, kept: Mapping[str, Storage]) -> Pass:
    """The pass that merges linears, but for those that are kept in different ways."""
    return replace(each, function=partial(merge_linears, kept=kept)) if kept else each


def rounding(each: Pass, dtype: str, integers: Set[str]) -> Pass:
    """The pass that rounds, to that dtype and all but those parameters."""
    narrow, error = NARROW[dtype]
    function = partial(lower_dtypes, narrow=narrow, integers=integers)
    return replace(each, function=function, tolerance=error)


def optional_passes() -> tuple[str, ...]:
    """The names of the passes that a graph is valid without."""
    return tuple(each.name for each in PIPELINE if each.optional)


def check_disabled(names: Sequence[str], rules: Sequence[str]) -> None:
    """Raises UsageError for names that are neither passes that a graph is valid without nor rules
    of grouping."""
    optional = dict.fromkeys((*optional_passes(), *rules))
    for name in names:
        if name not in optional:
            known = name in [each.name for each in PIPELINE]
            raise UsageError(
                f"pass {name!r} {'cannot be left out' if known else 'does not exist'}",
                hint=f"Optional: {', '.join(optional)}.",
            )
