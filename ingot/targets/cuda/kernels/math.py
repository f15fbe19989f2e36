"""Functions of single numbers, in float32."""

import triton
import triton.language as tl


@triton.jit
def tanh(x):
    """The hyperbolic tangent.

    The quotient loses digits near zero; the series that takes its place there is exact to 1e-8.
    """
    size = tl.abs(x)
    square = x * x
    far = 1.0 - 2.0 / (tl.exp(2.0 * size) + 1.0)
    series = 2.0 / 15.0 + square * (-17.0 / 315.0 + square * (62.0 / 2835.0))
    near = size * (1.0 + square * (-1.0 / 3.0 + square * series))
    magnitude = tl.where(size < 0.25, near, far)
    return tl.where(x < 0.0, -magnitude, magnitude)


@triton.jit
def softplus(x):
    """log(1 + exp(x)); x itself beyond 20, as in PyTorch.

    A logarithm near 1 has few digits; the series of artanh that takes its place there is exact to
    1e-9.
    """
    e = tl.exp(tl.minimum(x, 20.0))
    part = e / (2.0 + e)
    square = part * part
    series = 1.0 / 5.0 + square * (1.0 / 7.0 + square * (1.0 / 9.0))
    near = 2.0 * part * (1.0 + square * (1.0 / 3.0 + square * series))
    return tl.where(x > 20.0, x, tl.where(e < 0.25, near, tl.log(1.0 + e)))


@triton.jit
def soft_capped(x, CAP: tl.constexpr):
    """cap * tanh(x / cap)."""
    return CAP * tanh(x / CAP)


@triton.jit
def gated(gate, up, KIND: tl.constexpr, LIMIT: tl.constexpr):
    """activation(gate) * up; of the kind "clamped" the gate of gpt-oss, where NaN stays NaN."""
    if KIND == "clamped":
        gate = tl.where(gate > LIMIT, LIMIT, gate)
        up = tl.where(up > LIMIT, LIMIT, tl.where(up < -LIMIT, -LIMIT, up))
        y = (up + 1.0) * (gate / (1.0 + tl.exp(-1.702 * gate)))
    else:
        y = activated(gate, KIND) * up
    return y


@triton.jit
def activated(x, KIND: tl.constexpr):
    """The activation of that kind."""
    if KIND == "silu":
        y = x / (1.0 + tl.exp(-x))
    elif KIND == "gelu":
        y = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif KIND == "gelu_tanh":
        y = 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    elif KIND == "relu":
        y = tl.maximum(x, 0.0)
    elif KIND == "log1p_relu":
        y = tl.log(1.0 + tl.maximum(x, 0.0))
    elif KIND == "sigmoid":
        y = 1.0 / (1.0 + tl.exp(-x))
    elif KIND == "tanh":
        y = tanh(x)
    elif KIND == "softplus":
        y = softplus(x)
    elif KIND == "identity":
        y = x
    else:
        tl.static_assert(KIND == "relu2")
        y = tl.maximum(x, 0.0) * tl.maximum(x, 0.0)
    return y
