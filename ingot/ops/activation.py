"""activation: the nonlinearity of a plain MLP, or of scores that become weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch.nn.functional as F
from torch import Tensor

from ingot.ops.registry import like, register, rounded

KINDS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "log1p_relu": lambda x: F.relu(x).log1p(),
    "sigmoid": F.sigmoid,
    "tanh": F.tanh,
    "softplus": F.softplus,  # x itself beyond 20
    "identity": lambda x: x.clone(),  # of a gate that is a plain product
}


@rounded
def reference(x: Tensor, kind: str) -> Tensor:
    """x [...] -> [...]; `kind` is one of KINDS."""
    return KINDS[kind](x.float())


register(
    "activation",
    reference,
    lambda a: like(a.x, a.out_dtype),
)
