"""The table of cosines and sines."""

from __future__ import annotations

import pytest
import torch

from ingot.errors import CodegenError
from ingot.ops.rope_table import reference
from ingot.targets.cuda.calls_heads import CALLS
from tests.targets.cuda.runs import rows_of_one, run
from tests.targets.sketch import Sketch

# The first frequency of every table is 1: these are angles in radians.
POSITIONS = (0, 1, 2, 7, 100, 1003, 31415, 99999, 131071, 1048575, 16777215)
LENGTH = 64  # after so many positions tables that have a temperature grow again


def table(
    positions: tuple[int, ...], frequencies: torch.Tensor, scale: float, temperature: float = 0.0
) -> torch.Tensor:
    s = Sketch()
    inv_freq = s.weight("inv_freq", frequencies)
    out = s.call(
        "rope_table", "positions", inv_freq, scale=scale, temperature=temperature, length=LENGTH
    )
    inputs = rows_of_one(len(positions))
    inputs["positions"] = torch.tensor(positions, dtype=torch.int32)
    plan = s.plan()
    return run(plan, CALLS, inputs, s.weights, {}).read(plan.buffer(out))


@pytest.mark.parametrize("pairs, theta, scale", ((13, 5e5, 1.25), (64, 1e6, 1.0), (1, 1e4, 1.0)))
def test_cosines_and_sines(pairs: int, theta: float, scale: float) -> None:
    frequencies = 1.0 / theta ** (torch.arange(pairs) / pairs)
    positions = torch.tensor(POSITIONS)[None]
    got = table(POSITIONS, frequencies, scale)
    expected = reference(positions, frequencies, scale)[0]
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=2e-6)
    # Angles are products in float32; of those, the cosines are right to an ulp of 1.
    angles = (positions[0].float()[:, None] * frequencies).double()
    exact = torch.cat((angles.cos(), angles.sin()), -1) * scale
    assert (got.double() - exact).abs().max() < 1.3e-7 * scale


def test_tables_grow_with_the_temperature_of_their_positions() -> None:
    """Steps lie at multiples of the length; rows before the first have the plain table."""
    frequencies = 1.0 / 1e6 ** (torch.arange(13) / 13)
    positions = (0, 63, 64, 65, 127, 128, 99999, 16777215)
    got = table(positions, frequencies, 1.25, temperature=0.3)
    expected = reference(torch.tensor(positions)[None], frequencies, 1.25, 0.3, LENGTH)[0]
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=2e-6)
    plain = table(positions, frequencies, 1.25)
    same = [torch.equal(*rows) for rows in zip(got, plain, strict=True)]
    assert same == [True, True, *[False] * 6]


def test_every_quadrant_and_its_borders() -> None:
    angles = torch.arange(-40, 41) * (torch.pi / 4)
    got = table((1,), angles, 1.0)
    torch.testing.assert_close(got[0, :81].double(), angles.double().cos(), rtol=0, atol=1.2e-7)
    torch.testing.assert_close(got[0, 81:].double(), angles.double().sin(), rtol=0, atol=1.2e-7)


def test_an_angle_that_is_not_rounded_would_show() -> None:
    """The control: cosines of exact products are others than those of rounded ones."""
    frequencies = 1.0 / 5e5 ** (torch.arange(13) / 13)
    got = table((1048575,), frequencies, 1.0)[0, :13]
    unrounded = (1048575 * frequencies.double()).cos()
    assert (got.double() - unrounded).abs().max() > 1e-4


def test_frequencies_in_another_dtype_are_refused() -> None:
    with pytest.raises(CodegenError, match="inv_freq is bfloat16"):
        table((1,), torch.ones(4, dtype=torch.bfloat16), 1.0)
