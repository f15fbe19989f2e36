"""The pipeline: every pass from the exported graph to the final one, in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch

from ingot.artifact.formats import Storage
from ingot.errors import UsageError
from ingot.ops import OPS
from ingot.passes.canonicalize_casts import canonicalize_casts
from ingot.passes.canonicalize_heads import canonicalize_heads
from ingot.passes.canonicalize_ops import canonicalize_ops
from ingot.passes.canonicalize_views import canonicalize_views
from ingot.passes.fuse_add_rms_norm import fuse_add_rms_norm
from ingot.passes.fuse_attention import fuse_attention
from ingot.passes.fuse_gated_linears import GATES, fuse_gated_linears
from ingot.passes.fuse_gelu_mul import fuse_gelu_mul
from ingot.passes.fuse_layer_norm import fuse_layer_norm
from ingot.passes.fuse_linear_rope_kv_write import fuse_linear_rope_kv_write
from ingot.passes.fuse_quantize import fuse_quantize
from ingot.passes.fuse_relu_mul import fuse_relu_mul
from ingot.passes.fuse_residuals import fuse_residuals
from ingot.passes.fuse_rms_norm import fuse_rms_norm
from ingot.passes.fuse_rope import fuse_rope
from ingot.passes.fuse_rope_kv_write import fuse_rope_kv_write
from ingot.passes.fuse_rope_table import fuse_rope_table
from ingot.passes.fuse_silu_mul import fuse_silu_mul
from ingot.passes.graph import aten
from ingot.passes.lower_activations import lower_activations
from ingot.passes.lower_dtypes import lower_dtypes
from ingot.passes.merge_linears import merge_linears
from ingot.passes.quantize_caches import quantize_caches
from ingot.passes.quantize_linears import quantize_linears
from ingot.passes.rewrite_attention import rewrite_attention
from ingot.passes.select_logit_rows import select_logit_rows
from ingot.passes.step import DTYPES, Facts, Step
from ingot.passes.units import UNIT_COLUMNS
from ingot.passes.verify import (
    canonical_views,
    no_noise,
    only_known_ops,
    rows_selected,
    step_inputs,
    tokens_before_heads,
    typed,
)

# Relative errors of the logits that verification allows a step that is not bitwise.
REGROUPED = 1e-5  # the same products, summed by PyTorch's own matmul in another order
ROUNDED = 3e-2  # values stored in bfloat16
INT8, INT4 = 5e-2, 4e-1  # weights in so many bits; random ones are the hardest to round


def num_norms(facts: Facts) -> int:
    """Two a layer and the last; two more a layer where queries and keys are normed."""
    return (4 if facts.qk_norm else 2) * facts.num_layers + 1


def num_gates(act: str, facts: Facts) -> int:
    """One a layer, in the activation that the model has."""
    return facts.num_layers if str(facts.hidden_act).split("_")[0] == act else 0


def num_head_products(facts: Facts) -> int:
    """One a layer, where heads are whole units of columns."""
    return 0 if facts.head_dim % UNIT_COLUMNS else facts.num_layers


def num_gated_products(facts: Facts) -> int:
    """One a layer, where the halves are whole units of columns."""
    return 0 if facts.intermediate_size % UNIT_COLUMNS else facts.num_layers


PIPELINE: tuple[Step, ...] = (
    # one spelling for every idea
    Step(function=canonicalize_casts, gives=(no_noise,)),
    Step(function=canonicalize_views, needs=(no_noise,), gives=(canonical_views,)),
    Step(function=canonicalize_ops, needs=(canonical_views,)),
    # arithmetic to ops
    Step(
        function=fuse_rms_norm,
        needs=(canonical_views,),
        expect=num_norms,
        anchors=(aten.rsqrt.default, aten.rms_norm.default, aten.mean.dim),
    ),
    Step(function=fuse_layer_norm, needs=(canonical_views,)),
    Step(
        function=fuse_rope_table,
        needs=(canonical_views,),
        expect=lambda facts: 1,
        anchors=(aten.cos.default, aten.sin.default),
    ),
    Step(
        function=fuse_rope,
        needs=(canonical_views,),
        expect=lambda facts: 2 * facts.num_layers,
        anchors=(aten.neg.default, aten.sub.Tensor, aten.stack.default),
    ),
    Step(
        function=fuse_attention,
        needs=(canonical_views,),
        expect=lambda facts: facts.num_layers,
        tolerance=REGROUPED,
        anchors=(aten.scaled_dot_product_attention.default, aten.softmax.int),
    ),
    Step(function=canonicalize_heads, needs=(canonical_views,), gives=(tokens_before_heads,)),
    Step(
        function=fuse_silu_mul,
        expect=partial(num_gates, "silu"),
        anchors=(aten.silu.default, aten.sigmoid.default),
    ),
    Step(
        function=fuse_gelu_mul,
        expect=partial(num_gates, "gelu"),
        anchors=(aten.gelu.default, aten.tanh.default, aten.erf.default),
    ),
    Step(
        function=fuse_relu_mul,
        expect=partial(num_gates, "relu"),
        anchors=(aten.relu.default,),
    ),
    Step(function=lower_activations),
    Step(
        function=fuse_add_rms_norm,
        expect=lambda facts: 2 * facts.num_layers,
        anchors=(torch.ops.ingot.add.default,),
        optional=True,
    ),
    # fewer, larger products
    Step(
        function=merge_linears,
        expect=lambda facts: 2 * facts.num_layers,
        tolerance=REGROUPED,
        anchors=(torch.ops.ingot.linear.default,),
        optional=True,
    ),
    # from one sequence to a step of many
    Step(
        function=rewrite_attention,
        needs=(tokens_before_heads,),
        gives=(step_inputs,),
        expect=lambda facts: facts.num_layers,
        tolerance=REGROUPED,
    ),
    Step(
        function=select_logit_rows,
        needs=(step_inputs,),
        gives=(rows_selected, only_known_ops),
        expect=lambda facts: 1,
        tolerance=REGROUPED,
    ),
    # where values are rounded
    Step(
        function=quantize_linears,
        needs=(rows_selected, only_known_ops),
        tier="numeric",
        tolerance=INT8,
        anchors=(torch.ops.ingot.linear.default, torch.ops.ingot.embedding.default),
        option="--quantize",
    ),
    Step(
        function=lower_dtypes,
        needs=(rows_selected, only_known_ops),
        gives=(typed,),
        tier="numeric",
        tolerance=ROUNDED,
        dtypes=("bfloat16",),
    ),
    Step(
        function=quantize_caches,
        needs=(step_inputs, typed),
        tier="numeric",
        expect=lambda facts: facts.num_layers,
        tolerance=INT8,
        option="--kv-dtype int8",
    ),
    # what happens to values while a thread has them
    Step(
        function=fuse_rope_kv_write,
        needs=(step_inputs,),
        expect=lambda facts: facts.num_layers,
        anchors=(torch.ops.ingot.kv_write.default,),
        optional=True,
    ),
    Step(
        function=fuse_linear_rope_kv_write,
        needs=(rows_selected, only_known_ops),
        expect=num_head_products,
        anchors=(torch.ops.ingot.rope_kv_write.default,),
        optional=True,
        follows=("merge_linears", "fuse_rope_kv_write"),
    ),
    Step(
        function=fuse_gated_linears,
        needs=(rows_selected, only_known_ops),
        expect=num_gated_products,
        anchors=tuple(OPS[name].overload for name in GATES),
        optional=True,
        follows=("merge_linears",),
    ),
    Step(
        function=fuse_residuals,
        needs=(rows_selected, only_known_ops),
        expect=lambda facts: 2 * facts.num_layers,
        anchors=(torch.ops.ingot.add_rms_norm.default, torch.ops.ingot.add.default),
        optional=True,
    ),
    Step(
        function=fuse_quantize,
        needs=(rows_selected, only_known_ops),
        anchors=(torch.ops.ingot.quantize.default,),
        optional=True,
        option="--quantize",
    ),
)


def pipeline(
    *,
    dtype: str = "float32",
    disable: Sequence[str] = (),
    quantize: Mapping[str, Storage] | None = None,
    kv_dtype: str = "",
) -> list[Step]:
    """The steps of a compile.

    Args:
        dtype: what weights and activations are stored in, "float32" or "bfloat16".
        quantize: how each of the model's matrices that is to be quantized is stored; all of them
            must be found.
        disable: names of optional passes to leave out.
        kv_dtype: "int8" where the caches are; otherwise they are stored as activations are.

    Raises:
        UsageError: a dtype that is none, or a disabled pass that is unknown or not optional.
    """
    if dtype not in DTYPES:
        raise UsageError(
            f"dtype {dtype!r} cannot be lowered to", hint=f"Supported: {', '.join(DTYPES)}."
        )
    check_names(disable)
    asked = {"", "--quantize" if quantize else "", "--kv-dtype int8" if kv_dtype == "int8" else ""}
    return [
        quantizing(step, quantize) if quantize and step.name == "quantize_linears" else step
        for step in PIPELINE
        if dtype in step.dtypes
        and step.option in asked
        and not {step.name, *step.follows} & set(disable)
    ]


def quantizing(step: Step, storage: Mapping[str, Storage]) -> Step:
    """The step that quantizes, told what to."""
    narrow = any(stored.bits == 4 for stored in storage.values())
    return replace(
        step,
        function=partial(step.function, choose=storage.get),
        expect=lambda facts: len(storage),
        tolerance=INT4 if narrow else INT8,
    )


def check_names(disable: Sequence[str]) -> None:
    """Refuse to leave out a pass that does not exist or that the graph is invalid without."""
    optional = [step.name for step in PIPELINE if step.optional]
    for name in disable:
        if name not in optional:
            known = name in [step.name for step in PIPELINE]
            raise UsageError(
                f"pass {name!r} {'cannot be left out' if known else 'does not exist'}",
                hint=f"Optional: {', '.join(optional)}.",
            )
