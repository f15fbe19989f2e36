"""Numbers of two artifacts: what formats explain, and what they do not."""

from __future__ import annotations

import pytest
import torch

from ingot.artifact.formats import Format, Storage
from ingot.artifact.plan import Buffer
from ingot.compare.numbers_apart import Apart, numbers_apart
from ingot.compiler.interpret import Value
from ingot.compiler.quantization.gptq import gptq, inverse_factor, second_moments
from ingot.compiler.quantization.search import quantize_rows

FORMATS = {
    "float32": None,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8-g32": Storage(8, 32),
    "int8-channel": Storage(8, 0),
    "int4-g32": Storage(4, 32),
    "int4-g128": Storage(4, 128),
    "int4-b32": Storage(4, 32, multipliers=False),
}
NAME = "model.layers.0.mlp.down_proj.weight"


def stored(values: torch.Tensor, kind: str) -> Value:
    form = FORMATS[kind]
    if isinstance(form, Storage):
        return quantize_rows(values, form.of(values.shape[-1]))
    return values if form is None else values.to(form)


def weights(columns: int = 320) -> torch.Tensor:
    """Rows of very different sizes, with a heavy tail."""
    rng = torch.Generator().manual_seed(3)
    values = torch.randn(96, columns, generator=rng)
    return (values + 0.1 * values**3) * torch.logspace(-3, 1, 96)[:, None]


def found(one: Value, other: Value) -> list[Apart]:
    buffer = Buffer(name=NAME, kind="weight", format=Format("float32"), shape=tuple(one.shape))
    return numbers_apart([buffer], lambda _: one, [buffer], lambda _: other)


@pytest.mark.parametrize("other", FORMATS)
@pytest.mark.parametrize("one", FORMATS)
def test_formats_explain_what_they_round(one: str, other: str) -> None:
    values = weights()
    assert found(stored(values, one), stored(values, other)) == []


def test_a_rounding_that_was_chosen_for_results_is_explained() -> None:
    values = weights()
    rows = torch.randn(2000, 320, generator=torch.Generator().manual_seed(4))
    factor = inverse_factor(second_moments(rows))
    assert found(gptq(values, factor, Storage(4, 32).of(320)), stored(values, "int4-g32")) == []


@pytest.mark.parametrize("factor", [1.3, 0.7, 2.0, -1.0, 0.0])
@pytest.mark.parametrize("kind", FORMATS)
def test_a_matrix_that_is_scaled_is_named(kind: str, factor: float) -> None:
    values = weights()
    (apart,) = found(stored(factor * values, kind), stored(values, kind))
    assert (apart.name, apart.of_rows) == (NAME, 96) and apart.rows > 80
    assert apart.factor == pytest.approx(factor, abs=0.02)


@pytest.mark.parametrize("kind", ["bfloat16", "int8-g32", "int4-g32"])
def test_a_single_row_that_differs_is_counted(kind: str) -> None:
    values = weights()
    other = values.clone()
    other[40] = other[41] * 0.9
    (apart,) = found(stored(other, kind), stored(values, "bfloat16"))
    assert apart.rows == 1 and apart.error > apart.explained


def test_what_is_no_number_is_apart() -> None:
    values = weights()
    wrong = values.clone()
    wrong[5, 5] = float("nan")
    (apart,) = found(wrong, values)
    assert apart.rows == 1


def test_matrices_that_one_side_lacks_and_vectors_are_left_out() -> None:
    values = weights()
    mine = Buffer(name="a", kind="weight", format=Format("float32"), shape=tuple(values.shape))
    theirs = Buffer(name="b", kind="weight", format=Format("float32"), shape=tuple(values.shape))
    read = {"a": values, "b": 2 * values}
    assert numbers_apart([mine], lambda b: read[b.name], [theirs], lambda b: read[b.name]) == []
    vector = Buffer(name=NAME, kind="weight", format=Format("float32"), shape=(320,))
    assert numbers_apart([vector], lambda _: values[0], [vector], lambda _: 2 * values[0]) == []
