"""activation: the nonlinearity of a plain MLP."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from ingot.ops import samples
from ingot.ops.registry import Kwargs, Op, like, register

KINDS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}


def reference(x: Tensor, kind: str, out_dtype: torch.dtype = torch.float32) -> Tensor:
    """x [...] -> [...]; `kind` is one of KINDS; float32 inside, rounded once."""
    return KINDS[kind](x.float()).to(out_dtype)


def sample_inputs(rng: torch.Generator) -> list[Kwargs]:
    return [
        {"x": samples.normal(rng, 1, 3, 37), "kind": kind, "out_dtype": out_dtype}
        for out_dtype in samples.DTYPES
        for kind in KINDS
    ]


ACTIVATION = register(
    Op(
        name="activation",
        reference=reference,
        fake=lambda a: like(a.x, a.out_dtype),
        sample_inputs=sample_inputs,
    )
)
