"""GPTQ against the search: better on the inputs that it was calibrated with, never out of range."""

from __future__ import annotations

import pytest
import torch

from ingot.compiler.quantization.gptq import gptq, inverse_factor, second_moments
from ingot.compiler.quantization.search import dequantize, quantize_rows
from ingot.errors import CompileError

ROWS, COLUMNS = 40, 192


def weight() -> torch.Tensor:
    return torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(1)) * 0.05


def inputs(seed: int, rows: int = 600) -> torch.Tensor:
    """Correlated, as activations are: few directions carry most of them."""
    mix = torch.randn(24, COLUMNS, generator=torch.Generator().manual_seed(2))
    rng = torch.Generator().manual_seed(seed)
    noise = torch.randn(rows, COLUMNS, generator=rng)
    return torch.randn(rows, 24, generator=rng) @ mix + 0.3 * noise


def output_error(x: torch.Tensor, got: tuple[torch.Tensor, torch.Tensor]) -> float:
    return float((x @ (weight() - dequantize(*got)).T).square().mean())


@pytest.mark.parametrize("bits, group", [(4, 32), (4, 64), (8, 32), (8, COLUMNS)])
def test_better_than_search_on_inputs_of_its_kind(bits: int, group: int) -> None:
    factor = inverse_factor(second_moments(inputs(3)))
    rounded = gptq(weight(), factor, bits=bits, group=group)
    searched = quantize_rows(weight(), bits=bits, group=group)
    for seed in (3, 4):  # its own inputs, and others like them
        assert output_error(inputs(seed), rounded) < 0.6 * output_error(inputs(seed), searched)
    # It pays elsewhere: the weights themselves are farther off.
    moved, nearest = (float((weight() - dequantize(*w)).norm()) for w in (rounded, searched))
    assert moved > nearest


def test_inputs_without_correlation_leave_the_search_as_it_is() -> None:
    factor = inverse_factor(torch.eye(COLUMNS))
    got = gptq(weight(), factor, bits=4, group=32)
    assert all(map(torch.equal, got, quantize_rows(weight(), bits=4, group=32)))


def test_values_are_of_the_format() -> None:
    values, scales = gptq(
        weight().bfloat16(), inverse_factor(second_moments(inputs(3))), bits=4, group=64
    )
    assert values.dtype == torch.int8 and values.shape == (ROWS, COLUMNS)
    assert int(values.min()) >= -8 and int(values.max()) <= 7
    assert torch.equal(scales, scales.half().float()) and scales.shape == (ROWS, 3)


def test_an_input_that_is_always_zero_is_rounded_by_itself() -> None:
    x = inputs(3)
    x[:, 7] = 0
    factor = inverse_factor(second_moments(x))
    assert factor.isfinite().all()
    got = dequantize(*gptq(weight(), factor, bits=8, group=32))
    assert float((got - weight())[:, 7].abs().max()) < 2e-3


def test_fewer_tokens_than_inputs_and_none_at_all() -> None:
    for x in (inputs(3, rows=5), torch.zeros(4, COLUMNS)):
        assert inverse_factor(second_moments(x)).isfinite().all()


def test_moments_that_are_not_finite_are_refused() -> None:
    with pytest.raises(CompileError, match="calibrat"):
        inverse_factor(torch.full((4, 4), float("nan")))
