"""GPTQ against the search: better on the inputs that it was calibrated with, never out of range."""

from __future__ import annotations

import pytest
import torch

from ingot.compiler.quantization import search
from ingot.compiler.quantization.gptq import gptq, inverse_factor, second_moments
from ingot.compiler.quantization.search import best_scales, quantize_rows, round_to
from ingot.errors import CompileError
from ingot.ops.scaled import Scaled
from tests.compiler.quantization.integers import integers

ROWS, COLUMNS = 40, 256


def weight() -> torch.Tensor:
    return torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(1)) * 0.05


def inputs(seed: int, rows: int = 600) -> torch.Tensor:
    """Correlated, as activations are: few directions carry most of them."""
    mix = torch.randn(24, COLUMNS, generator=torch.Generator().manual_seed(2))
    rng = torch.Generator().manual_seed(seed)
    noise = torch.randn(rows, COLUMNS, generator=rng)
    return torch.randn(rows, 24, generator=rng) @ mix + 0.3 * noise


def output_error(x: torch.Tensor, got: Scaled) -> float:
    return float((x @ (weight() - got.dequantize()).T).square().mean())


@pytest.mark.parametrize(
    "bits, group, block", [(4, 32, 128), (4, 64, 64), (8, 32, 32), (8, COLUMNS, COLUMNS)]
)
def test_better_than_search_on_inputs_of_its_kind(bits: int, group: int, block: int) -> None:
    factor, form = inverse_factor(second_moments(inputs(3))), integers(bits, group, block)
    rounded, searched = gptq(weight(), factor, form), quantize_rows(weight(), form)
    for seed in (3, 4):  # its own inputs, and others like them
        assert output_error(inputs(seed), rounded) < 0.6 * output_error(inputs(seed), searched)
    # It pays elsewhere: the weights themselves are farther off.
    moved, nearest = (float((weight() - w.dequantize()).norm()) for w in (rounded, searched))
    assert moved > nearest


def column_by_column(factor: torch.Tensor, group: int) -> torch.Tensor:
    """int8 as the paper has it: what a column loses reaches all columns behind it at once."""
    left, rounded = weight().T.clone(), torch.empty(COLUMNS, ROWS)
    for i in range(COLUMNS):
        if i % group == 0:
            scale = best_scales(left[i : i + group], bits=8)
        rounded[i] = round_to(left[i], scale, 8) * scale
        lost = (left[i] - rounded[i]) / factor[i, i]
        left[i + 1 :] -= torch.outer(factor[i, i + 1 :], lost)
    return rounded.T


def test_what_a_column_loses_reaches_columns_far_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Errors leave the 128 columns that are rounded together."""
    for starts in (search.STARTS, search.WEIGHTED_STARTS):  # of many another one may win by chance
        monkeypatch.setitem(starts, 8, (127.0, 126.0, 125.0, 124.0))
    x = inputs(3)
    x[:, 200:] = x[:, :56] + 0.01 * x[:, 200:]
    factor = inverse_factor(second_moments(x))
    got = gptq(weight(), factor, integers(8, 32)).dequantize()
    expected = column_by_column(factor, 32)
    lost, far = (weight() - expected)[:, 200:].norm(), (got - expected)[:, 200:].norm()
    assert float(far) < 0.5 * float(lost)  # roundings that fall to the other neighbour


def test_inputs_without_correlation_leave_the_search_as_it_is() -> None:
    factor = inverse_factor(torch.eye(COLUMNS))
    for form in (integers(4, 32), integers(4, 32, 128)):
        got = gptq(weight(), factor, form)
        searched = quantize_rows(weight(), form)
        assert torch.equal(got.values, searched.values)
        assert torch.equal(got.dequantize(), searched.dequantize())


@pytest.mark.parametrize("columns", [1, 37, 200])
def test_short_groups_are_rounded_as_the_search_rounds_them(columns: int) -> None:
    factor = inverse_factor(torch.eye(columns))
    for form in (integers(8, 128), integers(4, 32, 128), integers(4, 64, 128)):
        got, searched = (f(weight()[:, :columns]) for f in (
            lambda w, form=form: gptq(w, factor, form),
            lambda w, form=form: quantize_rows(w, form),
        ))  # fmt: skip
        assert torch.equal(got.dequantize(), searched.dequantize())
        assert (got.block, got.group) == (form.block, form.group)


def test_short_groups_are_better_than_search() -> None:
    x, rows = inputs(3)[:, :200], weight()[:, :200]
    form = integers(4, 32, 128)
    rounded = gptq(rows, inverse_factor(second_moments(x)), form)
    lost = [
        float((x @ (rows - each.dequantize()).T).square().mean())
        for each in (rounded, quantize_rows(rows, form))
    ]
    assert lost[0] < 0.6 * lost[1]


def test_values_are_of_the_format() -> None:
    factor = inverse_factor(second_moments(inputs(3)))
    got = gptq(weight().bfloat16(), factor, integers(4, 32, 128))
    assert got.values.dtype == torch.int8 and got.values.shape == (ROWS, COLUMNS)
    assert int(got.values.min()) >= -8 and int(got.values.max()) <= 7
    assert torch.equal(got.scales, got.scales.half().float()) and got.scales.shape == (ROWS, 2)
    assert got.multipliers is not None and got.multipliers.shape == (ROWS, 8)


def test_an_input_that_is_always_zero_is_rounded_by_itself() -> None:
    x = inputs(3)
    x[:, 7] = 0
    factor = inverse_factor(second_moments(x))
    assert factor.isfinite().all()
    got = gptq(weight(), factor, integers(8, 32)).dequantize()
    assert float((got - weight())[:, 7].abs().max()) < 2e-3


def test_fewer_tokens_than_inputs_and_none_at_all() -> None:
    for x in (inputs(3, rows=5), torch.zeros(4, COLUMNS)):
        assert inverse_factor(second_moments(x)).isfinite().all()


def test_moments_that_are_not_finite_are_refused() -> None:
    with pytest.raises(CompileError, match="calibrat"):
        inverse_factor(torch.full((4, 4), float("nan")))


def damped(moments: torch.Tensor, share: float) -> torch.Tensor:
    """The inverse that the factor is of: that share of the mean diagonal is added to all of it."""
    mean, dead = moments.diagonal().mean(), moments.diagonal() == 0
    return (moments + torch.diag(share * mean + mean * dead)).double().inverse().float()


def test_the_factor_is_of_the_inverse_of_the_damped_moments() -> None:
    for dead in ([], [7, 100]):
        x = inputs(3)
        x[:, dead] = 0
        moments = second_moments(x)
        torch.testing.assert_close(moments, x.T @ x / len(x))
        upper = inverse_factor(moments)
        assert torch.equal(upper, upper.triu())
        torch.testing.assert_close(upper.T @ upper, damped(moments, 0.01), rtol=1e-3, atol=1e-3)


def test_without_inputs_every_column_is_as_important() -> None:
    nothing = second_moments(torch.empty(0, 8))
    assert torch.equal(nothing, torch.zeros(8, 8))
    assert torch.equal(inverse_factor(nothing), torch.eye(8))


@pytest.mark.parametrize("below, attempts", [(0.005, 0), (0.05, 1), (0.5, 2), (5.0, 3), (500.0, 5)])
def test_moments_that_have_no_root_are_damped_tenfold(below: float, attempts: int) -> None:
    """As rounding leaves them: the least eigenvalue lies below zero by a share of the mean."""
    moments = torch.full((8, 8), 0.0).fill_diagonal_(1.0)
    moments[0, 1] = moments[1, 0] = 1.0 + below
    upper = inverse_factor(moments)
    expected = damped(moments, 0.01 * 10**attempts)
    torch.testing.assert_close(upper.T @ upper, expected, rtol=1e-3, atol=1e-4)


def test_moments_that_no_damping_helps_are_refused() -> None:
    moments = torch.eye(8)
    moments[0, 1] = moments[1, 0] = 2000.0
    with pytest.raises(CompileError, match="too large or not finite"):
        inverse_factor(moments)
