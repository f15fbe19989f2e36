"""Table of kernels: how their work is divided among threads, and how the compiler builds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

QUANTIZED = "quantized_"  # begins the names of kernels of products with weights in integers


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuKernel:
    """A kernel, apart from what its instructions tell.

    Attributes:
        effort: how long it takes to compile; beside attention and products others take no time.
        deals_heads: threads divide the heads of rows, though each head is computed by itself.
        is_norm: it needs all columns of a row.
    """

    effort: int = 0
    deals_heads: bool = False
    is_norm: bool = False


NORM = CpuKernel(is_norm=True)
HEADS = CpuKernel(deals_heads=True)
PRODUCT = CpuKernel(effort=2)
ATTENTION = CpuKernel(effort=3)
OTHER = CpuKernel()

# Every kernel that has one of these facts.
KERNELS: Mapping[str, CpuKernel] = {
    "activated_linear": PRODUCT,
    "activated_linear_quantize": PRODUCT,
    "add_rms_norm": NORM,
    "expert_gate": PRODUCT,
    "expert_gate_quantize": PRODUCT,
    "expert_sum": PRODUCT,
    "gated_linear": PRODUCT,
    "gated_linear_quantize": PRODUCT,
    "head_linear": PRODUCT,
    "layer_norm": NORM,
    "layer_norm_cast": NORM,
    "layer_norm_quantize": NORM,
    "linear": PRODUCT,
    "linear_add": PRODUCT,
    "linear_rope_kv_write": CpuKernel(effort=PRODUCT.effort, deals_heads=True),
    "linear_soft_cap": PRODUCT,
    "paged_attention": ATTENTION,
    "paged_attention_quantize": ATTENTION,
    "rms_norm": NORM,
    "rms_norm_quantize": NORM,
    "rope": HEADS,
    "rope_kv_write": HEADS,
    "segment_attention": ATTENTION,
    "segment_attention_quantize": ATTENTION,
}


def kernel_named(name: str) -> CpuKernel:
    """The kernel of that name, whatever its weights are stored in."""
    return KERNELS.get(name.removeprefix(QUANTIZED), OTHER)
