"""paged_attention_quantize: attention whose results are rounded to int8 for the next product."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops import paged_attention, quantize
from ingot.ops.registry import (
    DEFAULT_TOLERANCE,
    Args,
    Kwargs,
    Op,
    Tolerance,
    register,
    tensor_bytes,
)


def reference(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    page_table: Tensor,
    scale: float,
    group: int,
    window: int = 0,
    softcap: float = 0.0,
    k_scales: Tensor | None = None,
    v_scales: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Arguments of `paged_attention` -> out int8 [1, N, Hq D], scales [1, N, Hq D / group]: its
    result, heads side by side, by the rule of `quantize`. A group is of one head.
    """
    out = paged_attention.reference(
        q, k_cache, v_cache, query_start, context_lens, page_table, scale, window, softcap,
        k_scales, v_scales,
    )  # fmt: skip
    return quantize.reference(out.flatten(-2), group)


def sample_inputs(rng: torch.Generator) -> list[Kwargs]:
    return [
        {**{n: x for n, x in given.items() if n != "out_dtype"}, "group": given["q"].shape[-1]}
        for given in paged_attention.sample_inputs(rng)
    ]


def fake(a: Args) -> tuple[Tensor, Tensor]:
    return quantize.fake(Args(x=a.q.flatten(-2), group=a.group))


def num_bytes(a: Args) -> int:
    """Every visible key and value once, the queries and the results."""
    return paged_attention.bytes_read(a) + tensor_bytes(fake(a))


PAGED_ATTENTION_QUANTIZE = register(
    Op(
        name="paged_attention_quantize",
        reference=reference,
        fake=fake,
        sample_inputs=sample_inputs,
        num_flops=lambda a: paged_attention.num_flops(a) + 3 * a.q.numel(),
        num_bytes=num_bytes,
        outputs=("out", "out_scales"),
        # A rounded weight moves a result, and with it the largest of its group.
        tolerance={
            **DEFAULT_TOLERANCE,
            torch.float32: Tolerance(8e-3, 2e-5),
            torch.int8: Tolerance(0.0, 1.0),
        },
    )
)
