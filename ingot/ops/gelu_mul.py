"""gelu_mul: the gate of a GeGLU MLP."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ingot.ops import samples
from ingot.ops.registry import Kwargs, Op, register


def reference(
    gate: Tensor, up: Tensor, tanh: bool, out_dtype: torch.dtype = torch.float32
) -> Tensor:
    """gate, up [..., F] -> [..., F]: gelu(gate) * up, exact or by the tanh formula."""
    gelu = F.gelu(gate.float(), approximate="tanh" if tanh else "none")
    return (gelu * up.float()).to(out_dtype)


def fake(gate: Tensor, up: Tensor, tanh: bool, out_dtype: torch.dtype = torch.float32) -> Tensor:
    return gate.new_empty(gate.shape, dtype=out_dtype)


def sample_inputs(rng: torch.Generator) -> list[Kwargs]:
    return [
        {
            "gate": samples.normal(rng, 1, n, size),
            "up": samples.normal(rng, 1, n, size),
            "tanh": tanh,
            "out_dtype": out_dtype,
        }
        for out_dtype in samples.DTYPES
        for n, size, tanh in ((1, 64, True), (5, 200, False))
    ]


def num_flops(gate: Tensor, up: Tensor, tanh: bool, out_dtype: torch.dtype = torch.float32) -> int:
    return 10 * gate.numel()


GELU_MUL = register(
    Op(
        name="gelu_mul",
        reference=reference,
        fake=fake,
        sample_inputs=sample_inputs,
        num_flops=num_flops,
    )
)
