"""Products with integers at their limits: the largest sums, zeros, and what is not finite."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from ingot.artifact.formats import CODED
from ingot.ops.scaled import Scaled
from ingot.targets.cpu.pack import pack_quantized
from ingot.targets.cpu.weights import STORED_TOGETHER, blocks_together, whole
from tests.targets.cpu.cases import MORE, TARGETS_OF, at_levels, unit
from tests.targets.cpu.matrices import (
    MATRICES,
    Matrix,
    multipliers_beside_zeros,
    multipliers_of,
    values_of,
    zeros_beside,
    zeros_of,
)
from tests.targets.cpu.steps import Step
from tests.targets.cpu.test_kernels import check
from tests.targets.cpu.units import Unit, Values

every_level = at_levels("integer", f"{MORE}integer")
# Without those that multiply two sums, of which float32 holds no more than some.
ALONE = ("cast", "embedding", "linear", "linear_add", "linear_soft_cap")


def drawn(kind: str, target: str, rows: int) -> tuple[Unit, Step, Values]:
    rng = torch.Generator().manual_seed(rows)
    step = unit(kind, target).step(rng, [(rows, rows)])
    return unit(kind, target), step, unit(kind, target).draw(rng, step)


def matrices(kernels: Unit) -> list[Matrix]:
    """Those that are in the unit."""
    return [m for m in MATRICES if f"{m.name}.weight" in kernels.weights]


def rounded(results: Values, m: Matrix) -> Scaled:
    """The activations in integers that products with the matrix read."""
    value = results[f"{m.name}.x_{m.rows.dtype}_b{m.form.block}"]
    assert isinstance(value, Scaled)
    return value


def extreme(m: Matrix) -> Scaled:
    """Every product is as large as the format allows, of one sign or of both in turn."""

    def integers(bounds: tuple[int, int], columns: int, every: int) -> torch.Tensor:
        """The largest, and in some rows the least."""
        found = torch.full((m.outputs, columns), bounds[1] - 1, dtype=torch.int8)
        found[1::every] = bounds[0]
        return found

    form = m.form
    values = integers((CODED[0], CODED[-1] + 1) if form.codes else values_of(form), m.inputs, 2)
    multipliers = integers(multipliers_of(form), m.groups, 5) if form.has_multipliers else None
    scales = torch.full((m.outputs, form.blocks_of(m.inputs)), 2.0**-24)  # subnormal in float16
    scales[::3] = 0.5
    zeros = integers(zeros_of(form), m.groups, 2).flip(0) if form.zeros else None
    if multipliers is not None and zeros is not None and not form.minimums:
        multipliers = multipliers_beside_zeros(multipliers, form.bits)
        zeros = zeros_beside(multipliers, zeros, form.bits)
    minimums = scales.flip(0) if form.minimums else None
    widths = {"block": form.block, "group": form.group}
    return Scaled(values, multipliers, scales, zeros, minimums, **widths)


@every_level
def test_nothing_saturates(kind: str, target: str) -> None:
    kernels, step, values = drawn(kind, target, 8)
    kernels = kernels.with_weights({f"{m.name}.weight": extreme(m) for m in matrices(kernels)})
    for m in matrices(kernels):
        x = torch.ones(8, m.inputs)
        x[1::3] = -1e30
        x[2::3, ::2] = 1e-20
        values[f"{m.name}.x"] = x
    check(kernels, step, values, kernels.run(values, step), only=ALONE)


@every_level
def test_blocks_of_zeros_and_of_tiny_values_count_as_zero(kind: str, target: str) -> None:
    kernels, step, values = drawn(kind, target, 3)
    for m in matrices(kernels):
        x = values[f"{m.name}.x"]
        x[0] = 0
        x[1, : m.form.block] = 2.0**-101
        x[1, 0] = -1e-44
    got = kernels.run(values, step)
    check(kernels, step, values, got, only=ALONE)
    for m in matrices(kernels):
        assert not rounded(got, m).scales[1, 0].any()
        assert not rounded(got, m).values[1, : m.form.block].any()


@every_level
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_stays_so(kind: str, target: str, value: float) -> None:
    kernels, step, values = drawn(kind, target, 3)
    for m in matrices(kernels):
        values[f"{m.name}.x"][1, 0] = value
        values[f"{m.name}.x"][2] = value
    got = kernels.run(values, step)
    for m in matrices(kernels):
        finite = rounded(got, m).scales.isfinite()
        assert finite[0].all() and finite[1, 1:].all()
        assert not finite[1, 0].any() and not finite[2].any()
        for name in ("out", *(["capped"] * m.capped), *(["gated"] if m.result_block else [])):
            result = got[f"{m.name}.{name}"]
            assert not result[1:].isfinite().any(), name
            assert result[0].isfinite().all(), name


@every_level
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_scale_that_is_not_finite_spoils_its_column_alone(
    kind: str, target: str, value: float
) -> None:
    """As of a broken checkpoint, which no level may turn into numbers."""
    kernels, step, values = drawn(kind, target, 3)
    changed = {f"{m.name}.weight": with_scale(kernels, m, value) for m in matrices(kernels)}
    got = kernels.with_weights(changed).run(values, step)
    for m in matrices(kernels):
        finite = got[f"{m.name}.out"].isfinite()
        assert not finite[:, 1].any(), m.name
        assert finite[:, 0].all() and finite[:, 2:].all(), m.name


def with_scale(kernels: Unit, m: Matrix, value: float) -> Scaled:
    """The matrix with that as the first scale of its second column."""
    weight = kernels.weights[f"{m.name}.weight"]
    assert isinstance(weight, Scaled)
    scales = weight.scales.clone()
    scales[1, 0] = value
    return replace(weight, scales=scales)


@every_level
def test_bits_do_not_depend_on_the_number_of_rows(kind: str, target: str) -> None:
    """A tile, one row more, too few rows to unpack int4, enough of them, and several tiles."""
    kernels, step, values = drawn(kind, target, 25)
    expected = kernels.run(values, step)
    for rows in (1, 2, 4, 5, 6, 7, 8, 9, 11, 12, 13, 17, 24):
        _, few, _ = drawn(kind, target, rows)
        got = kernels.run({name: x[:rows] for name, x in values.items()}, few)
        for m in matrices(kernels):
            for name in ("out", *(["sum"] * m.extended), *(["gated"] if m.result_block else [])):
                one, other = got[f"{m.name}.{name}"], expected[f"{m.name}.{name}"]
                assert torch.equal(one, other[:rows]), (m.name, name, rows)


@every_level
@pytest.mark.parametrize("rows", [3, 30])
def test_what_fills_up_the_last_block_counts_nothing(kind: str, target: str, rows: int) -> None:
    kernels, step, values = drawn(kind, target, rows)
    other = kernels.with_weights({})
    other.packed_weights = [data.copy() for data in kernels.packed_weights]
    places = {
        layout.name: data
        for layout, data in zip(kernels.layouts, other.packed_weights, strict=True)
    }
    changed = [m.name for m in matrices(kernels) if fill_with_noise(m, kernels, places)]
    stored = {m.name: whole(m.inputs, STORED_TOGETHER[m.form.bits]) for m in matrices(kernels)}
    assert changed == [m.name for m in matrices(kernels) if stored[m.name] != m.inputs] != []
    one, two = kernels.run(values, step), other.run(values, step)
    for m in matrices(kernels):
        assert torch.equal(one[f"{m.name}.out"], two[f"{m.name}.out"]), m.name


def fill_with_noise(m: Matrix, kernels: Unit, places: dict[str, np.ndarray]) -> bool:
    """Puts numbers where zeros fill up the last block of a packed matrix, if they do."""
    stored = whole(m.inputs, STORED_TOGETHER[m.form.bits])
    given = kernels.weights[f"{m.name}.weight"]
    assert isinstance(given, Scaled)
    rng = torch.Generator().manual_seed(m.inputs)
    bounds = (0, 8) if m.form.minimums else (-8, 8)
    noise = torch.randint(*bounds, (m.outputs, stored - m.inputs), generator=rng).to(torch.int8)
    one_scale = m.form.block == m.inputs and blocks_together(m.form) == 1
    form = replace(m.form, block=stored, group=stored) if one_scale else m.form
    values = torch.cat((given.values, noise), 1)
    groups, blocks = -(-stored // form.group), form.blocks_of(stored)
    counts = {"multipliers": groups, "zeros": groups, "scales": blocks}
    small = {
        name: torch.nn.functional.pad(part, (0, counts[name] - part.shape[1]), value=1)
        for name, part in given.parts().items()
        if name in counts
    }
    filled = replace(given, values=values, **small, block=form.block, group=form.group)
    data = places[f"{m.name}.weight"]
    found = pack_quantized(filled, form).numpy()
    is_other = bool(np.any(data[: found.size] != found))
    data[: found.size] = found
    return is_other


@every_level
def test_looked_up_rows_have_the_bits_of_what_they_stand_for(kind: str, target: str) -> None:
    """Zeros of either sign, too: numbers are those of the program that made the file."""
    kernels, step, values = drawn(kind, target, 9)
    got = kernels.run(values, step)
    for m in matrices(kernels):
        table = kernels.weights[f"{m.name}.weight"]
        assert isinstance(table, Scaled)
        expected = table[step.inputs["tokens"].long()].dequantize().flatten()
        found = got[f"{m.name}.row"].flatten()
        assert torch.equal(found.view(torch.int32), expected.view(torch.int32)), m.name


@pytest.mark.thorough
@pytest.mark.parametrize("rows", [1, 7, 8, 11, 12, 16, 17, 33, 70, 130])
def test_tiles_have_the_bits_of_vectors(rows: int) -> None:
    """Of the best two levels, one has tiles where the host has."""
    results = []
    for target in TARGETS_OF["integer"][:2]:
        kernels, step, values = drawn("integer", target, rows)
        results.append(kernels.run(values, step, threads=1))
    one, other = results
    for m in matrices(unit("integer", TARGETS_OF["integer"][0])):
        assert torch.equal(one[f"{m.name}.out"], other[f"{m.name}.out"]), m.name


def test_a_wrong_weight_is_noticed() -> None:
    """The control: one bit of one weight."""
    kernels, step, values = drawn("integer", TARGETS_OF["integer"][0], 7)
    name = f"{matrices(kernels)[0].name}.weight"
    wrong = kernels.weights[name]
    changed = Scaled(wrong.values.clone(), None, wrong.scales)
    changed.values[5, 17] ^= 1
    got = kernels.with_weights({name: changed}).run(values, step)
    with pytest.raises(AssertionError, match=matrices(kernels)[0].name):
        check(kernels, step, values, got)
