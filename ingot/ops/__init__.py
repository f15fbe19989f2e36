"""The op vocabulary: every op that a graph, a plan or a kernel may name.

Importing this package declares all of them as `torch.ops.ingot.<name>`.
"""

from ingot.ops import (
    activation,
    add,
    add_rms_norm,
    attention,
    cast,
    embedding,
    gated_linear,
    gelu_mul,
    kv_write,
    layer_norm,
    linear,
    paged_attention,
    quantize,
    quantized_embedding,
    quantized_linear,
    relu_mul,
    rms_norm,
    rope,
    rope_kv_write,
    rope_table,
    select_rows,
    silu_mul,
)
from ingot.ops.registry import OPS, Op, Tolerance

__all__ = [
    "OPS",
    "Op",
    "Tolerance",
    "activation",
    "add",
    "add_rms_norm",
    "attention",
    "cast",
    "embedding",
    "gated_linear",
    "gelu_mul",
    "kv_write",
    "layer_norm",
    "linear",
    "paged_attention",
    "quantize",
    "quantized_embedding",
    "quantized_linear",
    "relu_mul",
    "rms_norm",
    "rope",
    "rope_kv_write",
    "rope_table",
    "select_rows",
    "silu_mul",
]
