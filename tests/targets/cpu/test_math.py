"""Elementary functions over their whole range, against double precision."""

from __future__ import annotations

from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ingot.compiler.interpret import Value
from tests.targets.cpu.cases import KINDS, at_levels, every_case
from tests.targets.cpu.steps import Step, make_step
from tests.targets.cpu.units import Unit

ROWS, COLUMNS = 128, 200

ATTENTION = "attention-32"
CASES = (*(f"{name}-{COLUMNS}" for name in KINDS), "table-13", "table-64", ATTENTION, "head")

pytestmark = at_levels("f32")


@cache
def unit(kind: str, target: str) -> Unit:
    """The cases that are looked at here. Their numbers count, and not how soon they are there."""
    return Unit({name: every_case(kind)[name] for name in CASES}, target, flags=("-O1",))


def run(kind: str, target: str, x: Tensor, positions: Tensor) -> dict[str, Value]:
    rng = torch.Generator().manual_seed(0)
    step = make_step(rng, [(ROWS, ROWS)])
    step = Step({**step.inputs, "positions": positions}, step.num_pages)
    values = unit(kind, target).draw(rng, step)
    for name in KINDS:
        values[f"{name}-{COLUMNS}.x"] = x.view(ROWS, COLUMNS)
    return unit(kind, target).run(values, step)


@pytest.fixture
def x() -> Tensor:
    """Values of every size, and the ends of the range."""
    rng = torch.Generator().manual_seed(1)
    spread = torch.randn(ROWS * COLUMNS, generator=rng) * torch.logspace(-6, 1.9, ROWS * COLUMNS)
    spread[:4] = torch.tensor([0.0, -0.0, 1e30, -1e30])
    return spread


def test_activations(kind: str, target: str, x: Tensor) -> None:
    got = run(kind, target, x, torch.zeros(ROWS))
    exact = {
        "silu": F.silu(x.double()),
        "gelu": F.gelu(x.double()),
        "gelu_tanh": F.gelu(x.double(), approximate="tanh"),
        "relu": F.relu(x.double()),
        "relu2": F.relu(x.double()).square(),
        "log1p_relu": F.relu(x.double()).log1p(),
        "sigmoid": F.sigmoid(x.double()),
        "tanh": F.tanh(x.double()),
        "softplus": F.softplus(x.double()),
        "identity": x.double(),
    }
    error = {
        name: (got[f"{name}-{COLUMNS}.out"].flatten().double() - reference).abs()
        for name, reference in exact.items()
    }
    ordinary = x.abs() < 80
    assert (error["silu"][ordinary] <= 1e-6 * exact["silu"].abs()[ordinary]).all()
    for name in ("gelu", "gelu_tanh"):
        assert (error[name] <= 5e-7 * x.double().abs() + 1e-12).all(), name
    assert (error["silu"] <= 1e-6 * x.double().abs()).all()
    assert (error["relu"] == 0).all()
    assert (error["log1p_relu"] <= 1e-6 * exact["log1p_relu"]).all()
    for name in ("sigmoid", "softplus"):
        assert (error[name] <= 5e-7 * exact[name] + 1e-37).all(), name
    assert (error["tanh"] <= 5e-7 * exact["tanh"].abs()).all()
    assert (error["identity"] == 0).all()
    assert (error["relu2"][ordinary] <= 1e-7 * exact["relu2"][ordinary]).all()


def test_nan_stays_nan(kind: str, target: str, x: Tensor) -> None:
    got = run(kind, target, torch.full_like(x, float("nan")), torch.zeros(ROWS))
    for name in KINDS:
        assert got[f"{name}-{COLUMNS}.out"].isnan().all(), name


def test_angles_of_far_positions(kind: str, target: str, x: Tensor) -> None:
    """Up to position 131071 the table is what PyTorch computes in float32."""
    rng = torch.Generator().manual_seed(2)
    positions = torch.randint(0, 131072, (ROWS,), generator=rng)
    positions[0] = 131071
    got = run(kind, target, x, positions)
    for half in (13, 64):
        frequencies = unit(kind, target).weights[f"table-{half}.inv_freq"]
        angles = (positions.float()[:, None] * frequencies).double()
        exact = torch.cat((angles.cos(), angles.sin()), -1) * 1.25
        assert (got[f"table-{half}.out"].double() - exact).abs().max() < 3e-7


def test_weights_of_attention(kind: str, target: str) -> None:
    """One key of score -x beside `row` keys of score 0: its part is e^-x / (row + e^-x)."""
    step = make_step(torch.Generator().manual_seed(0), [(ROWS, ROWS)])
    values = unit(kind, target).draw(torch.Generator().manual_seed(0), step)
    case, size = ATTENTION, 32
    x = torch.linspace(0, 100, ROWS)
    for name in ("k_cache", "v_cache"):
        values[f"{case}.{name}"].zero_()
    first = int(step.inputs["page_table"][0, 0])
    values[f"{case}.k_cache"][first, :, 0, 0] = -(size**0.5)  # the scale takes it back
    values[f"{case}.v_cache"][first, :, 0] = 1.0
    values[f"{case}.q"].zero_()
    values[f"{case}.q"][:, :, 0] = x[:, None]
    got = unit(kind, target).run(values, step)[f"{case}.attended"].double()
    weight = torch.exp(-x.double())
    exact = (weight / (torch.arange(ROWS) + weight))[:, None, None]
    seen = x < 87
    error = (got - exact).abs() / exact
    assert (error[seen] <= 3e-7 * (1 + x[seen, None, None])).all()
    assert (got[x > 88] == 0).all()
