"""quantized_linear_rope_kv_write: linear_rope_kv_write with a quantized weight."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops import linear_rope_kv_write, quantized_linear, rope_kv_write, samples
from ingot.ops.kv_write import CACHES, stored_bytes
from ingot.ops.linear_rope_kv_write import fake, heads, split_heads
from ingot.ops.registry import Args, Kwargs, Op, register, tensor_bytes


def reference(
    values: Tensor,
    scales: Tensor,
    weight: Tensor,
    weight_multipliers: Tensor | None,
    weight_scales: Tensor,
    bias: Tensor | None,
    group: int,
    block: int,
    bits: int,
    table: Tensor,
    slots: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
    offset: float = 0.0,
    interleaved: bool = False,
    k_scales: Tensor | None = None,
    v_scales: Tensor | None = None,
    out_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Arguments of `quantized_linear`, weight [(Hq + 2 Hk) D, K] -> q rotated [1, N, Hq, D].

    The heads of its result are queries, keys and values in this order; what happens to them, in
    float32, is `rope_kv_write`.
    """
    product = quantized_linear.reference(
        values, scales, weight, weight_multipliers, weight_scales, bias, group, block, bits
    )
    return rope_kv_write.reference(
        *split_heads(product, k_cache), table, slots, k_cache, v_cache, q_norm, k_norm, eps, offset,
        interleaved, k_scales, v_scales, out_dtype,
    )  # fmt: skip


def sample_inputs(rng: torch.Generator) -> list[Kwargs]:
    spans = ((8, 32, 32), (4, 32, 64))
    return [
        with_product(given, rng, 64, *span)
        for span in spans
        for given in rope_kv_write.sample_inputs(rng)
    ]


def with_product(
    given: Kwargs, rng: torch.Generator, size: int, bits: int, group: int, block: int
) -> Kwargs:
    """Arguments of rope_kv_write, with a product of `size` inputs for queries, keys and values."""
    taken = [given.pop(name) for name in ("q", "k", "v")]
    rows, outputs = taken[0].shape[1], sum(x.shape[2] * x.shape[3] for x in taken)
    return {
        **quantized_linear.activations(rng, rows, size, block),
        **samples.quantized_weight(rng, outputs, size, group=group, block=block, bits=bits),
        "bias": samples.normal(rng, outputs) if given["q_norm"] is None else None,
        **{"group": group, "block": block, "bits": bits},
        **given,
    }


def num_flops(a: Args) -> int:
    product: int = 2 * a.values.numel() * a.weight.shape[0]
    return product + rope_kv_write.num_flops(heads(a))


def num_bytes(a: Args) -> int:
    """Only the rows that are written count of the caches."""
    read = quantized_linear.product_bytes(a) + tensor_bytes([a.table, a.slots])
    return read + tensor_bytes([fake(a)]) + stored_bytes(heads(a))


QUANTIZED_LINEAR_ROPE_KV_WRITE = register(
    Op(
        name="quantized_linear_rope_kv_write",
        reference=reference,
        fake=fake,
        sample_inputs=sample_inputs,
        num_flops=num_flops,
        num_bytes=num_bytes,
        mutates=CACHES,
        tolerance=linear_rope_kv_write.LINEAR_ROPE_KV_WRITE.tolerance,
    )
)
