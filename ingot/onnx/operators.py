"""Ops that become one operator, and how they are written.

Three of them ONNX has since opset 23: https://onnx.ai/onnx/operators/onnx__Attention.html,
onnx__RMSNormalization.html and onnx__RotaryEmbedding.html. Products with integers are an operator
of onnxruntime; see `ingot.onnx.integers`. None of them can run in PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.onnx.ops import symbolic, symbolic_multi_out

from ingot.onnx.attention import Heads, Past, attend
from ingot.ops.attention import SoftmaxScope

OPSET = 23


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float, **_: Any) -> Tensor:
    """x [..., C], weight [C] -> [..., C]."""
    scale = weight + offset if offset else weight
    return symbolic(
        "RMSNormalization",
        (x, scale),
        {"axis": -1, "epsilon": eps},
        dtype=x.dtype,
        shape=x.shape,
        version=OPSET,
    )


def rope(x: Tensor, table: Tensor, interleaved: bool, **_: Any) -> Tensor:
    """x [1, N, H, D], table [1, N, 2*D2] -> [1, N, H, D]."""
    heads, size, rotated = x.shape[2], x.shape[3], table.shape[2]
    flat = x.flatten(2)
    partial = {"rotary_embedding_dim": rotated} if rotated != size else {}
    turned = symbolic(
        "RotaryEmbedding",
        (flat, *table.chunk(2, -1)),
        {"num_heads": heads, "interleaved": int(interleaved), **partial},
        dtype=x.dtype,
        shape=flat.shape,
        version=OPSET,
    )
    return turned.reshape(x.shape)


def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, past: Past, heads: Heads, scoring: SoftmaxScope
) -> tuple[Tensor, Tensor, Tensor]:
    """As `ingot.onnx.attention.attend`, which it leaves sinks and biases to: the operator knows
    none."""
    if scoring.sinks is not None or scoring.bias is not None:
        return attend(q, k, v, mask, past, heads, scoring)
    batch, tokens, width = k.shape
    count, kv_count = heads
    total = tokens if past[0] is None else tokens + past[0].shape[2]
    present = (batch, kv_count, total, width // kv_count)
    mixed, keys, values = symbolic_multi_out(
        "Attention",
        (q, k, v, mask, *past),
        {
            "q_num_heads": count,
            "kv_num_heads": kv_count,
            "scale": scoring.scale,
            "softcap": scoring.softcap,
        },
        dtypes=(q.dtype,) * 3,
        shapes=(q.shape, present, present),
        version=OPSET,
    )
    return mixed, keys, values


def product(
    x: Tensor, integers: Tensor, scales: Tensor, zeros: Tensor | None, bits: int, group: int
) -> Tensor:
    """x [..., I] -> [..., O]; the others are as of `ingot.onnx.integers.Integers`."""
    rows = scales.shape[0]
    sizes = {"K": x.shape[-1], "N": rows, "bits": bits, "block_size": group}
    # 1: what the integers are multiplied with stays float32; by default it may be rounded, too.
    exact = {"accuracy_level": 1} if x.dtype == torch.float32 else {}
    return symbolic(
        "com.microsoft::MatMulNBits",
        (x, integers, scales, *(() if zeros is None else (zeros,))),
        {**sizes, **exact},
        dtype=x.dtype,
        shape=(*x.shape[:-1], rows),
        version=1,
    )


def operators(opset: int) -> Mapping[str, Callable[..., Any]]:
    """The primitives that an opset has as one operator, and what calls it."""
    return {"rms_norm": rms_norm, "rope": rope, "attention": attention} if opset >= OPSET else {}
