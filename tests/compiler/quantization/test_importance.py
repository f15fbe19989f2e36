"""Searches weighted by what columns matter: less is lost where it matters, in every format."""

from __future__ import annotations

import pytest
import torch

from ingot.artifact.formats import Format, Storage
from ingot.compiler.quantization.search import best_scales, quantize_rows, search
from ingot.errors import CheckpointError
from ingot.ops.scaled import Scaled

FORMS = [
    *(Storage(8, group).of(256) for group in (32, 128, 0)),
    Storage(4, 32).of(256),
    Storage(4, 32, multipliers=False).of(256),
    *(Storage(bits, 32, zeros=True).of(256) for bits in (4, 5, 6)),
    Storage(4, 128, zeros=True).of(256),
    Storage(4, 32, multipliers=False, zeros=True).of(256),
]
# Of the weighted error without weights: what the weighted search leaves at most.
GAINS = {8: 0.9, 6: 0.9, 5: 0.8, 4: 0.75}


def matrix(rows: int = 32, columns: int = 256) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0)) * 0.02


def importance(columns: int = 256) -> torch.Tensor:
    """As mean squares of activations are: a few columns have most of it."""
    return torch.randn(columns, generator=torch.Generator().manual_seed(1)).mul(2).exp() * 7


def lost(found: Scaled, counts: torch.Tensor) -> torch.Tensor:
    """The weighted error of each row."""
    weight = matrix(*found.shape)
    return ((weight - found.dequantize()).square() * counts).sum(1)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_less_is_lost_where_it_matters_and_more_where_it_does_not(form: Format) -> None:
    plain = quantize_rows(matrix(), form)
    weighted = quantize_rows(matrix(), form, importance())
    before, after = lost(plain, importance()), lost(weighted, importance())
    assert (after <= before).float().mean() > 0.95
    assert float(after.sum()) < GAINS[form.bits] * float(before.sum())
    assert float(lost(weighted, torch.ones(256)).sum()) > float(lost(plain, torch.ones(256)).sum())
    # That of other columns is of no such help.
    wrong = lost(quantize_rows(matrix(), form, importance().flip(0)), importance())
    assert float(wrong.sum()) > 1.25 * float(after.sum())


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_columns_that_matter_alike_are_no_importance_at_all(form: Format) -> None:
    plain = quantize_rows(matrix(), form)
    for alike in (torch.ones(256), torch.full((256,), 0.25), torch.zeros(256)):
        found = quantize_rows(matrix(), form, alike)
        assert float(lost(found, torch.ones(256)).sum()) <= 1.01 * float(
            lost(plain, torch.ones(256)).sum()
        )


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_importance_has_no_unit(form: Format) -> None:
    """A power of two changes no bit, however far it is from one."""
    found = quantize_rows(matrix(), form, importance())
    for unit in (2.0**-60, 2.0**60):
        other = quantize_rows(matrix(), form, importance() * unit)
        assert torch.equal(found.dequantize(), other.dequantize())


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_columns_of_no_importance_are_still_rounded(form: Format) -> None:
    counts = importance()
    counts[:40], counts[100], counts[101] = 0, 1e30, 1e-30
    found = quantize_rows(matrix(), form, counts)
    off = (found.dequantize() - matrix()).abs()
    assert off.isfinite().all()
    assert float(off[:, :32].mean()) < 0.004  # a group that nothing matters in, as any other
    assert float(off[:, 100].max()) < 0.004


@pytest.mark.parametrize("columns", [1, 31, 200])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_short_rows_take_it_as_well(form: Format, columns: int) -> None:
    counts = importance(columns)
    found = quantize_rows(matrix(8, columns), form, counts)
    plain = quantize_rows(matrix(8, columns), form)
    assert found.shape == (8, columns)
    assert float(lost(found, counts).sum()) <= 1.02 * float(lost(plain, counts).sum())


def test_pieces_and_stacks_take_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    # So that no sum depends on its order.
    weight, counts = (matrix() * 4000).round(), torch.tensor([1.0, 3.0]).repeat(128)
    stored = Storage(8, 32)
    whole = quantize_rows(weight, stored.of(256), counts)
    monkeypatch.setattr("ingot.compiler.quantization.search.ELEMENTS_AT_ONCE", 256 * 5)
    monkeypatch.setattr("ingot.compiler.quantization.search.AT_ONCE", 256 * 3)
    parts = torch.cat([piece.dequantize() for piece in search(weight, stored, counts)])
    stack = quantize_rows(weight.view(4, 8, 256), stored.of(256), counts).dequantize()
    assert torch.equal(whole.dequantize(), parts)
    assert torch.equal(whole.dequantize(), stack.view(-1, 256))


def test_a_weight_that_hardly_matters_is_clipped() -> None:
    groups = torch.full((32, 1), 0.1)
    groups[::2] *= -0.7
    groups[5] = 0.25
    weights = torch.ones(32, 1)
    before = best_scales(groups, bits=4)
    weights[5] = 1e-4
    assert float(best_scales(groups, weights, bits=4).abs()) < 0.7 * float(before.abs())


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("size", [1e9, 1e36])
def test_huge_weights_are_refused_whatever_they_matter(form: Format, size: float) -> None:
    weight = matrix(2)
    weight[1, 7] = size
    with pytest.raises(CheckpointError, match="float16"):
        quantize_rows(weight, form, importance())
