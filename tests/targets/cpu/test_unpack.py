"""What was packed is read back, number by number."""

from __future__ import annotations

import pytest
import torch

from ingot.artifact.formats import DType, Format, rounded_rows
from ingot.artifact.plan import Plan
from ingot.ops.scaled import Scaled
from ingot.targets.cpu.generate import WeightLayout
from ingot.targets.cpu.pack import pack_panels, pack_quantized
from ingot.targets.cpu.unpack import pack_state, unpack, unpack_quantized, unpack_state
from tests.support import samples
from tests.targets.cpu.matrices import MATRICES, Matrix
from tests.targets.cpu.native import pack_cache
from tests.targets.cpu.units import parts_of
from tests.targets.sketch import Sketch


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(64, 64), (27, 27), (200, 144), (3, 5), (130, 1)])
def test_panels_come_back(dtype: DType, shape: tuple[int, int]) -> None:
    rows = samples.weight(torch.Generator().manual_seed(0), *shape).to(getattr(torch, dtype))
    layout = WeightLayout("w", "panels", Format(dtype), shape)
    assert torch.equal(unpack(layout, pack_panels(rows).view(torch.uint8)), rows)


@pytest.mark.parametrize("m", MATRICES, ids=lambda m: m.name)
def test_integers_come_back(m: Matrix) -> None:
    drawn = m.drawn(torch.Generator().manual_seed(0))
    found = unpack_quantized(pack_quantized(drawn, m.form), (m.outputs, m.inputs), m.form)
    for part in ("values", "multipliers", "scales"):
        one, other = getattr(found, part), getattr(drawn, part)
        assert (one is None) == (other is None) and (one is None or torch.equal(one, other))


def of_heads(form: Format) -> Plan:
    s = Sketch()
    k, v = (s.rows(name, 2, 20) for name in "kv")
    s.call("kv_write", k, v, "slots", *s.caches(2, 20, form, 32))
    return s.plan()


@pytest.mark.parametrize("form", [Format("float32"), Format("bfloat16"), rounded_rows(20)], ids=str)
def test_keys_and_values_come_back(form: Format) -> None:
    """The judge is the packing that the kernels' tests are written with."""
    plan, rng = of_heads(form), torch.Generator().manual_seed(0)
    for state in plan.of_kind("state"):
        shape = (3, *map(int, state.shape[1:]))
        numbers = samples.normal(rng, *shape)
        value = (
            Scaled((numbers * 40).to(torch.int8), None, torch.rand((*shape[:-1], 1)))
            if form.is_scaled
            else numbers.to(getattr(torch, form.dtype))
        )
        packed = [pack_cache(state.name, part) for part in parts_of(value)]
        found = unpack_state(plan, state, [part.flatten().view(torch.uint8) for part in packed])
        for one, other in zip(parts_of(found), parts_of(value), strict=True):
            assert torch.equal(one, other)
        for one, other in zip(pack_state(plan, state, value), packed, strict=True):
            assert torch.equal(one.flatten(), other.flatten())
