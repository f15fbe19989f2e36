"""linear: a product with a weight matrix, accumulated in float32."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ingot.ops.registry import DEFAULT_TOLERANCE, KernelTolerance, register, rounded
from ingot.ops.scaled import Operand, Scaled

# A dot product of so many int8 pairs is an integer that float32 holds exactly.
EXACT_IN_FLOAT32 = 1024


@rounded
def reference(
    x: Operand,
    weight: Operand,
    bias: Tensor | None = None,
) -> Tensor:
    """x [..., I], weight [O, I], bias [O] or None -> [..., O]: x @ weight.T + bias.

    Integers are multiplied as integers where both operands have them, see `integer_product`;
    otherwise a weight counts as the numbers that it stands for.
    """
    bias = None if bias is None else bias.float()
    if isinstance(x, Scaled):
        assert isinstance(weight, Scaled), "activations are rounded for weights in integers"
        out = integer_product(x, weight)
        return out if bias is None else out + bias
    dense = weight.dequantize() if isinstance(weight, Scaled) else weight.float()
    return F.linear(x.float(), dense, bias)


def integer_product(x: Scaled, weight: Scaled) -> Tensor:
    """The sum over the blocks, ascending, of float(dot) * (scale of x * scale of the weight), and
    where the weight has minimums less float(zeros) * (scale of x * minimum).

    dot is the exact integer product of a block of x with the weight's integers, and zeros that with
    its zeros.
    """
    block, whole = weight.block, weight.integers()
    # A product of int8 tensors would sum in int8; these floats hold the sums exactly.
    of_bytes = weight.multipliers is None or weight.zeros is not None
    narrow = block <= EXACT_IN_FLOAT32 and of_bytes and weight.minimums is None
    wide = torch.float32 if narrow and x.values.dtype == torch.int8 else torch.float64
    out = x.scales.new_zeros((*x.shape[:-1], weight.shape[0]), dtype=torch.float32)
    zeros = whole if weight.minimums is None else weight.taken_off()
    parts = zip(*(part.split(block, -1) for part in (x.values, whole, zeros)), strict=True)
    for index, (a, w, z) in enumerate(parts):
        dot = (a.to(wide) @ w.to(wide).T).float()
        scales = x.scales[..., index, None]
        out += dot * (scales * weight.scales[:, index].float())
        if weight.minimums is not None:
            dot = (a.to(wide) @ z.to(wide).T).float()
            out -= dot * (scales * weight.minimums[:, index].float())
    return out


register(
    "linear",
    reference,
    lambda a: a.x.new_empty((*a.x.shape[:-1], a.weight.shape[0]), dtype=a.out_dtype),
    # vdpbf16ps flushes denormals and rounds each step of the sum in its own way
    tolerance={**DEFAULT_TOLERANCE, torch.float32: KernelTolerance(1e-5, 5e-5)},
)
