"""The search for formats with zeros: what it returns is the format, and few grids are better."""

from __future__ import annotations

import itertools

import pytest
import torch

from ingot.artifact.formats import Format, Storage
from ingot.compiler.quantization import affine
from ingot.compiler.quantization.gptq import gptq, inverse_factor, second_moments
from ingot.compiler.quantization.search import quantize_rows
from ingot.errors import CheckpointError
from ingot.ops.scaled import Scaled, stack

RANGES = {4: (-8, 7), 5: (-16, 15), 6: (-32, 31), 8: (-127, 127)}
LARGEST_MULTIPLIER = {4: 16, 5: 8, 6: 4}
INT4 = Storage(4, 32, zeros=True).of(128)
FORMS = [
    *(Storage(bits, 32, zeros=True).of(128) for bits in (4, 5, 6)),
    Storage(4, 64, zeros=True).of(128),
    Storage(4, 128, zeros=True).of(128),
    Storage(4, 32, multipliers=False, zeros=True).of(128),
    Storage(8, 32, zeros=True).of(128),
]


def matrix(rows: int = 24, columns: int = 256) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0)) * 0.02


def importance(columns: int = 256) -> torch.Tensor:
    return torch.randn(columns, generator=torch.Generator().manual_seed(1)).mul(1.5).exp()


def error(weight: torch.Tensor, found: Scaled, weights: torch.Tensor | float = 1.0) -> float:
    return float(((weight - found.dequantize()).double().square() * weights).sum())


def check_format(found: Scaled, form: Format, shape: tuple[int, int]) -> None:
    """What `Scaled` promises of its parts."""
    (low, high), (rows, columns) = RANGES[form.bits], shape
    assert found.values.shape == shape and (found.block, found.group) == (form.block, form.group)
    assert low <= int(found.values.min()) and int(found.values.max()) <= high
    assert torch.equal(found.scales, found.scales.half().float())
    assert found.zeros is not None and found.zeros.shape == (rows, -(-columns // form.group))
    if form.has_multipliers:
        assert found.multipliers is not None
        assert int(found.multipliers.min()) >= 1
        assert int(found.multipliers.max()) <= LARGEST_MULTIPLIER[form.bits]
        each = found.multipliers.short()
        assert (found.zeros >= high * each - 127).all() and (found.zeros <= 127 + low * each).all()
        assert int(found.integers().abs().max()) <= 127
    else:
        assert found.multipliers is None
        assert low <= int(found.zeros.min()) and int(found.zeros.max()) <= high


@pytest.mark.parametrize("columns", [1, 31, 33, 128, 200, 256])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_what_is_found_is_of_the_format(form: Format, columns: int) -> None:
    for weight in (matrix(), matrix() + 0.05, matrix().abs(), -matrix().abs(), matrix() ** 3):
        found = quantize_rows(weight[:, :columns], form, importance()[:columns])
        check_format(found, form, (24, columns))
        assert error(weight[:, :columns], found) < 0.2 * float(weight[:, :columns].square().sum())


@pytest.mark.parametrize("group", [32, 64])
def test_numbers_that_are_of_the_format_are_nearly_found_again(group: int) -> None:
    draw, shape = torch.Generator().manual_seed(2), (16, 128 // group)
    values = torch.randint(-8, 8, (16, 128), generator=draw, dtype=torch.int8)
    values[:, ::group], values[:, 1::group] = -8, 7
    multipliers = torch.randint(3, 9, shape, generator=draw, dtype=torch.int8)
    zeros = torch.randint(-20, 20, shape, generator=draw, dtype=torch.int8)
    weight = Scaled(values, multipliers, torch.full((16, 1), 2.0**-8), zeros).dequantize()
    found = quantize_rows(weight, Storage(4, group, zeros=True).of(128))
    assert error(weight, found) <= 3e-4 * float(weight.square().sum())


def test_it_is_far_better_than_one_without_zeros_where_groups_are_off_centre() -> None:
    weight = matrix() + 0.03
    with_zeros, without = quantize_rows(weight, INT4), quantize_rows(weight, Format("int4", 32, 32))
    assert error(weight, with_zeros) < 0.4 * error(weight, without)


def least(numbers: list[float], weights: list[float]) -> float:
    """Of all grids of one group the least error, by trying every line through two of its points."""
    x, w = torch.tensor(numbers).double(), torch.tensor(weights).double()
    best = float("inf")
    for i, j in itertools.combinations(range(len(numbers)), 2):
        for a, b in itertools.permutations(range(-8, 8), 2):
            scale = (x[i] - x[j]) / (a - b)
            if scale <= 0:
                continue
            q = ((x - x[i]) / scale + a).round().clamp(-8, 7)
            means = (w * q).sum() / w.sum(), (w * x).sum() / w.sum()
            off = q - means[0]
            fitted = (w * off * (x - means[1])).sum() / (w * off * off).sum()
            best = min(best, float((w * (off * fitted + means[1] - x) ** 2).sum()))
    return best


def test_a_group_of_a_few_weights_is_close_to_the_best_of_all_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Within a few percent of lines that need not be stored, and not by chance."""
    form = Format("int4", 8, 4, "float16", zeros=True)
    draw = torch.Generator().manual_seed(3)
    weight = torch.randn(6, 8, generator=draw)
    weight[:, 2] *= 3
    counts = torch.rand(8, generator=draw) + 0.05
    bound = sum(
        least(row[start : start + 4], counts.tolist()[start : start + 4])
        for row in weight.tolist()
        for start in (0, 4)
    )
    whole = float((weight.square() * counts).sum())
    got = error(weight, quantize_rows(weight, form, counts), counts)
    assert got <= bound + 2e-3 * whole
    monkeypatch.setattr(affine, "SCALES", (1.4,))
    monkeypatch.setattr(affine, "SPANS", {4: (11.0,)})
    crippled = error(weight, quantize_rows(weight, form, counts), counts)
    assert crippled > 1.5 * got


def every_grid(block: torch.Tensor, weights: torch.Tensor) -> float:
    """The least error of a block of two groups of 16: every multiplier and zero, many scales."""
    best = float("inf")
    largest = float(block.abs().max()) / 127
    m = torch.arange(1, 17.0)[:, None, None]
    z = torch.arange(-127, 128.0)[None, :, None]
    allowed = ((z >= 7 * m - 127) & (z <= 127 - 8 * m))[..., 0]
    for factor in torch.linspace(0.8, 4, 120):
        scale = (largest * factor).half().float()
        total = 0.0
        for group, counts in zip(block.view(2, 16), weights.view(2, 16), strict=True):
            units = group / scale
            q = ((units + z) / m).round().clamp(-8, 7)
            lost = ((q * m - z - units).square() * counts).sum(-1) * scale**2
            total += float(lost[allowed].min())
        best = min(best, total)
    return best


def test_blocks_are_close_to_the_best_of_all_grids() -> None:
    form = Format("int4", 32, 16, "float16", zeros=True)
    weight, counts = matrix(12, 32) + 0.01, importance(32)
    found = quantize_rows(weight, form, counts)
    off = (weight - found.dequantize()).square() * counts
    relative = [
        float(lost.sum()) / every_grid(row, counts / 1.0)
        for row, lost in zip(weight, off, strict=True)
    ]
    assert max(relative) < 1.35 and sum(relative) / len(relative) < 1.1


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_zeros_stay_zeros(form: Format) -> None:
    weight = matrix(4, 128)
    weight[0] = 0
    weight[1, :64] = 0
    found = quantize_rows(weight, form)
    assert not found.dequantize()[0].any() and not found.scales[0].any()
    assert found.zeros is not None
    assert not found.values[0].any() and not found.zeros[0].any()
    if form.group <= 64:
        assert not found.dequantize()[1, :64].any() and found.dequantize()[1, 64:].any()


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("size", [1e-30, 1e-12, 1e-8, 1e-6])
def test_tiny_weights_give_numbers_no_larger_than_they_are(form: Format, size: float) -> None:
    weight = matrix(4, 128) * size / 0.02
    found = quantize_rows(weight, form, importance(128))
    check_format(found, form, (4, 128))
    assert error(weight / size, Scaled(
        found.values, found.multipliers, found.scales / size, found.zeros,
        block=form.block, group=form.group,
    )) <= 1.0001 * float((weight / size).square().sum())  # fmt: skip


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_constant_groups_are_kept(form: Format) -> None:
    for value in (1.0, -1.0, 0.37):
        weight = torch.full((2, 128), value)
        weight[1, 64:] = -3 * value
        got = quantize_rows(weight, form).dequantize()
        assert (got - weight).abs().max() <= 0.03 * weight.abs().max()


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("sign", [1, -1])
def test_weights_beyond_float16_are_refused(form: Format, sign: int) -> None:
    for size in (1e9, 1e20, 3e38):
        weight = matrix(2, 128)
        weight[1, 5] = sign * size
        with pytest.raises(
            CheckpointError, match=f"weights up to {size:.3g} need".replace("+", ".")
        ):
            quantize_rows(weight, form, importance(128))
    weight = matrix(2, 128)
    weight[1, 5] = sign * 60000.0
    got = quantize_rows(weight, form).dequantize()
    assert float(got[1, 5]) == pytest.approx(sign * 60000.0, rel=0.01)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf")])
def test_a_group_that_is_not_finite_spoils_no_other(form: Format, odd: float) -> None:
    weight = matrix(3, 256)
    weight[1, 140] = odd
    found = quantize_rows(weight, form, importance())
    check_format(found, form, (3, 256))
    assert not found.dequantize()[1, 140 // form.group * form.group :][: form.group].any()
    clean = quantize_rows(matrix(3, 256), form, importance())
    assert torch.equal(found.dequantize()[[0, 2]], clean.dequantize()[[0, 2]])
    assert torch.equal(found.dequantize()[1, :128], clean.dequantize()[1, :128])


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_pieces_of_any_size_give_the_same(form: Format) -> None:
    weight = (matrix() * 2000).round()  # so that no sum depends on its order
    whole = quantize_rows(weight, form)
    alone = stack([quantize_rows(row, form) for row in weight.split(5)])
    again = quantize_rows(weight.clone(), form)
    for other in (alone, again):
        assert torch.equal(whole.values, other.values) and torch.equal(whole.scales, other.scales)
        assert whole.zeros is not None and other.zeros is not None
        assert torch.equal(whole.zeros, other.zeros)
    assert whole.multipliers is None or torch.equal(whole.multipliers, alone.multipliers)  # type: ignore[arg-type]


def test_what_fills_up_the_last_block_widens_no_range() -> None:
    """Twelve numbers far from zero, next to zeros that only fill up."""
    weight = matrix(8, 140) + 1
    found = quantize_rows(weight, INT4, importance(140))
    lost = (weight - found.dequantize()).square()
    assert float(lost[:, 128:].mean()) < float(lost[:, :128].mean())


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_gptq_takes_zeros_too(form: Format) -> None:
    draw = torch.Generator().manual_seed(4)
    mix = torch.randn(24, 256, generator=draw)
    x = torch.randn(600, 24, generator=draw) @ mix + 0.3 * torch.randn(600, 256, generator=draw)
    moments, weight = second_moments(x), matrix()
    rounded = gptq(weight, inverse_factor(moments), form, moments.diagonal())
    check_format(rounded, form, (24, 256))
    searched = quantize_rows(weight, form, moments.diagonal())
    lost = [(x @ (weight - each.dequantize()).T).square().mean() for each in (rounded, searched)]
    assert float(lost[0]) < 0.7 * float(lost[1])


@pytest.mark.parametrize("columns", [37, 200, 256])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_gptq_without_correlation_is_the_search(form: Format, columns: int) -> None:
    counts = importance(columns)
    got = gptq(matrix()[:, :columns], inverse_factor(torch.eye(columns)), form, counts)
    wanted = quantize_rows(matrix()[:, :columns], form, counts)
    # The order of a sum may decide between two that are as good.
    assert float((got.dequantize() != wanted.dequantize()).float().mean()) < 0.05
