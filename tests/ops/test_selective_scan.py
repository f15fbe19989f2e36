"""A selective scan is the rule token by token, and has a gradient."""

from __future__ import annotations

import pytest
import torch

from ingot.ops import OPS, selective_scan

reference = OPS["selective_scan"].reference
NAMES = ("x", "dt", "b", "c", "rate", "skip")
TOKENS = 2 * selective_scan.TOKENS_AT_ONCE + 7


def drawn(rate: float) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(1)
    shapes = {"x": (1, TOKENS, 6), "b": (1, TOKENS, 4), "c": (1, TOKENS, 4), "skip": (6,)}
    normal = {name: torch.randn(shape, generator=rng) for name, shape in shapes.items()}
    steps = torch.rand(1, TOKENS, 6, generator=rng)
    return normal | {"dt": steps, "rate": -rate * (0.5 + torch.rand(4, 6, generator=rng))}


def in_float64(call: dict[str, torch.Tensor]) -> torch.Tensor:
    """As the rule is written down."""
    x, dt, b, c, rate, skip = (call[name].double() for name in NAMES)
    h, out = torch.zeros_like(rate), []
    for t in range(x.shape[1]):
        h = (dt[0, t] * rate).exp() * h + b[0, t][:, None] * (dt * x)[0, t]
        out.append((c[0, t][:, None] * h).sum(0) + skip * x[0, t])
    return torch.stack(out)[None]


def off(got: torch.Tensor, right: torch.Tensor) -> float:
    return float((got - right).norm() / right.norm())


@pytest.mark.parametrize("rate", [1e-4, 0.1, 3.0, 24.0])
def test_whole_sequences_are_right_whatever_decays(rate):
    call = drawn(rate)
    assert off(reference(**call), in_float64(call)) < 1e-6


def test_gradients_are_those_of_the_rule():
    call = drawn(0.1)
    given = [call[name].requires_grad_() for name in NAMES]
    got = torch.autograd.grad(reference(**call).square().sum(), given)
    right = torch.autograd.grad(in_float64(call).square().sum(), given)
    for name, mine, other in zip(NAMES, got, right, strict=True):
        assert off(mine, other) < 5e-6, name


def test_blocks_that_forget_the_one_before_show(monkeypatch):
    call = drawn(1e-4)
    runs = list(selective_scan.runs(call["x"], (4, 6), None, None, None))
    parts = [slice(0, TOKENS // 2), slice(TOKENS // 2, TOKENS)]
    cut = [run._replace(own=part) for run in runs for part in parts]
    monkeypatch.setattr(selective_scan, "runs", lambda *given: cut)
    assert off(reference(**call), in_float64(call)) > 1e-3
