"""linear_rope_kv_write: the product that makes queries, keys and values, and what follows it."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops import linear, rope_kv_write, samples
from ingot.ops.kv_write import CACHES, stored_bytes
from ingot.ops.registry import Args, Kwargs, Op, Tolerance, register, tensor_bytes


def reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
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
    """x [1, N, I], weight [(Hq + 2 Hk) D, I], bias or None -> q rotated [1, N, Hq, D].

    The heads of x @ weight.T + bias are queries, keys and values in this order; what happens to
    them, in float32, is `rope_kv_write`.
    """
    q, k, v = split_heads(linear.reference(x, weight, bias), k_cache)
    return rope_kv_write.reference(
        q, k, v, table, slots, k_cache, v_cache, q_norm, k_norm, eps, offset, interleaved,
        k_scales, v_scales, out_dtype,
    )  # fmt: skip


def split_heads(product: Tensor, cache: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[1, N, (Hq + 2 Hk) D] -> q [1, N, Hq, D], k and v [1, N, Hk, D]; Hk and D are the cache's."""
    heads = product.unflatten(-1, (-1, cache.shape[3]))
    kv_heads = cache.shape[1]
    q, k, v = heads.split((heads.shape[2] - 2 * kv_heads, kv_heads, kv_heads), dim=2)
    return q, k, v


def sample_inputs(rng: torch.Generator) -> list[Kwargs]:
    return [
        with_product(given, rng, 40, dtype)
        for dtype in samples.DTYPES
        for given in rope_kv_write.sample_inputs(rng)
        if given["out_dtype"] == dtype
    ]


def with_product(given: Kwargs, rng: torch.Generator, size: int, dtype: torch.dtype) -> Kwargs:
    """Arguments of rope_kv_write, with a product of `size` inputs for queries, keys and values."""
    heads = [given.pop(name) for name in ("q", "k", "v")]
    rows, outputs = heads[0].shape[1], sum(x.shape[2] * x.shape[3] for x in heads)
    return {
        "x": samples.normal(rng, 1, rows, size, dtype=dtype),
        "weight": samples.weight(rng, outputs, size, dtype),
        "bias": samples.normal(rng, outputs) if given["q_norm"] is None else None,
        **given,
    }


def fake(a: Args) -> Tensor:
    q: Tensor = heads(a).q
    return torch.empty_like(q, dtype=a.out_dtype)


def heads(a: Args) -> Args:
    """The call of rope_kv_write that is in a call, with queries, keys and values without values."""
    product = a.table.new_empty((*a.table.shape[:-1], a.weight.shape[0]))
    q, k, v = split_heads(product, a.k_cache)
    return Args(**vars(a) | {"q": q, "k": k, "v": v})


def num_flops(a: Args) -> int:
    product: int = 2 * a.x.numel() * a.weight.shape[0]
    return product + rope_kv_write.num_flops(heads(a))


def num_bytes(a: Args) -> int:
    """Only the rows that are written count of the caches."""
    return tensor_bytes([a.x, a.weight, a.bias, a.table, a.slots, fake(a)]) + stored_bytes(heads(a))


LINEAR_ROPE_KV_WRITE = register(
    Op(
        name="linear_rope_kv_write",
        reference=reference,
        fake=fake,
        sample_inputs=sample_inputs,
        num_flops=num_flops,
        num_bytes=num_bytes,
        mutates=CACHES,
        # As a linear's, and a rotated value may round to the neighbour.
        tolerance={**linear.LINEAR.tolerance, torch.int8: Tolerance(0.0, 1.0)},
    )
)
