"""Ops that become one operator, and how it is written.

Three of them ONNX has since opset 23; products with integers are an operator of onnxruntime.

https://onnx.ai/onnx/operators/onnx__Attention.html, onnx__RMSNormalization.html and
onnx__RotaryEmbedding.html.
"""

from __future__ import annotations

from typing import Any

import torch
from onnxscript import opset23 as op
from onnxscript.values import Opset

import ingot.onnx.attention  # (registers torch.ops.ingot_onnx)
import ingot.onnx.integers  # noqa: F401

MICROSOFT = Opset("com.microsoft", 1)
IN_FLOAT32 = 1  # accuracy_level: what the integers are multiplied with is not rounded


def rms_norm(x: Any, weight: Any, eps: float, offset: float = 0.0, out_dtype: int = 1) -> Any:
    scale = op.Add(weight, op.Constant(value_float=offset)) if offset else weight
    return op.RMSNormalization(x, scale, axis=-1, epsilon=eps)


def rope(x: Any, table: Any, interleaved: bool = False, out_dtype: int = 1) -> Any:
    heads, size, rotated = int(x.shape[2]), int(x.shape[3]), int(table.shape[2])
    flat = op.Reshape(x, op.Constant(value_ints=[1, -1, heads * size]))
    cos, sin = op.Split(table, num_outputs=2, axis=-1)
    turned = op.RotaryEmbedding(
        flat, cos, sin, num_heads=heads, interleaved=int(interleaved),
        rotary_embedding_dim=rotated if rotated != size else 0,
    )  # fmt: skip
    return op.Reshape(turned, op.Constant(value_ints=[1, -1, heads, size]))


def attention(
    q: Any, k: Any, v: Any, mask: Any, past_key: Any, past_value: Any,
    heads: int, kv_heads: int, scale: float, softcap: float,
) -> Any:  # fmt: skip
    mixed, key, value, _ = op.Attention(
        q, k, v, mask, past_key, past_value,
        q_num_heads=heads, kv_num_heads=kv_heads, scale=scale, softcap=softcap,
    )  # fmt: skip
    return mixed, key, value


def product(x: Any, integers: Any, scales: Any, bits: int, group: int) -> Any:
    rows, groups = scales.shape
    return MICROSOFT.MatMulNBits(
        x, integers, scales, K=int(groups) * group, N=int(rows), bits=bits, block_size=group,
        accuracy_level=IN_FLOAT32 if x.dtype == 1 else 0,
    )  # fmt: skip


def operators(opset: int) -> frozenset[str]:
    """The primitives that an opset has as one operator."""
    return frozenset(("rms_norm", "rope", "attention")) if opset >= 23 else frozenset()


TABLE = {
    torch.ops.ingot.rms_norm.default: rms_norm,
    torch.ops.ingot.rope.default: rope,
    torch.ops.ingot_onnx.attention.default: attention,
    torch.ops.ingot_onnx.product.default: product,
}
