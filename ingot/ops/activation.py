"""activation: the nonlinearity of a plain MLP."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from ingot.ops.registry import like, register

KINDS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}


def reference(x: Tensor, kind: str, out_dtype: torch.dtype = torch.float32) -> Tensor:
    """x [...] -> [...]; `kind` is one of KINDS; float32 inside, rounded once."""
    return KINDS[kind](x.float()).to(out_dtype)


register(
    "activation",
    reference,
    lambda a: like(a.x, a.out_dtype),
)
