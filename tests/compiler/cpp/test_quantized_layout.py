"""The bytes of quantized weights, and what the generator says of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from ingot.artifact.target import Target
from ingot.compiler.cpp.generate import generate
from ingot.compiler.cpp.quantized_layout import fits, group_bytes, pack_quantized, packed_bytes
from ingot.errors import CodegenError
from ingot.ops import samples
from tests.compiler.cpp.quantized import MATRICES, TARGETS, Matrix, unit


def unpack(packed: Tensor, m: Matrix) -> tuple[Tensor, Tensor]:
    """Values and scales, read byte by byte as the page says they lie."""
    raw, size = packed.numpy(), group_bytes(m.bits, m.group)
    values = np.zeros((m.outputs, m.inputs), np.int8)
    scales = np.zeros((m.outputs, m.inputs // m.group), np.float32)
    for row in range(m.outputs):
        for k in range(m.inputs):
            group, inside = divmod(k, m.group)
            at = (row // 32 * (m.inputs // m.group) + group) * size
            scales[row, group] = raw[at : at + 64].view(np.float16)[row % 32]
            quad = inside // 4 if m.bits == 8 else inside // 32 * 4 + inside % 16 // 4
            byte = int(raw[at + 64 + quad * 128 + row % 32 * 4 + k % 4])
            if m.bits == 8:
                values[row, k] = byte - 128
            else:
                values[row, k] = (byte & 15 if inside % 32 < 16 else byte >> 4) - 8
    return torch.from_numpy(values), torch.from_numpy(scales)


@pytest.mark.parametrize("m", MATRICES, ids=lambda m: m.name)
def test_every_value_and_scale_lies_where_the_page_says(m: Matrix) -> None:
    rng = torch.Generator().manual_seed(0)
    drawn = samples.quantized_weight(rng, m.outputs, m.inputs, m.group, m.bits)
    packed = pack_quantized(drawn["weight"], drawn["weight_scales"], bits=m.bits, group=m.group)
    assert packed.nbytes == packed_bytes(m.outputs, m.inputs, m.bits, m.group)
    values, scales = unpack(packed, m)
    assert torch.equal(values, drawn["weight"]) and torch.equal(scales, drawn["weight_scales"])


def test_panels_pack_apart() -> None:
    """What a streaming packer relies on: a run of rows that starts a panel packs by itself."""
    rng = torch.Generator().manual_seed(0)
    whole = samples.quantized_weight(rng, 100, 64, 32, 4)
    pieces = [
        pack_quantized(
            whole["weight"][rows], whole["weight_scales"][rows], bits=4, group=32
        )
        for rows in (slice(0, 64), slice(64, 96), slice(96, 100))
    ]  # fmt: skip
    together = pack_quantized(whole["weight"], whole["weight_scales"], bits=4, group=32)
    assert torch.equal(torch.cat(pieces), together)


@pytest.mark.parametrize(
    ("columns", "bits", "group"), [(100, 8, 32), (48, 4, 48), (42, 8, 42), (64, 5, 32)]
)
def test_what_does_not_fit_is_refused(columns: int, bits: int, group: int) -> None:
    assert not fits(columns, bits, group)
    values = torch.zeros(32, columns, dtype=torch.int8)
    with pytest.raises(ValueError, match=f"groups of {group} int{bits}"):
        pack_quantized(values, torch.ones(32, 1), bits=bits, group=group)


def test_the_generator_tells_the_layout_and_keeps_scales_with_their_weight() -> None:
    layouts = {layout.name: layout for layout in unit(TARGETS[0]).generated.weights}
    m = MATRICES[4]
    layout = layouts[f"{m.name}.weight"]
    assert (layout.layout, layout.group) == ("int4-panels", m.group)
    assert layout.scales == f"{m.name}.weight_scales" and layout.scales not in layouts
    assert layouts[f"{m.name}.bias"].layout == "rows"


@pytest.mark.parametrize("attrs", [{"group": 48, "bits": 4}, {"group": 64, "bits": 8}])
def test_the_generator_refuses_what_no_kernel_takes(attrs: dict[str, int]) -> None:
    plan = unit(TARGETS[0]).plan
    name = f"{MATRICES[4].name}.weight"
    wrong = tuple(
        replace(i, attrs=attrs) if i.inputs.get("weight") == name else i for i in plan.instructions
    )
    with pytest.raises(CodegenError, match=MATRICES[4].name):
        generate(replace(plan, instructions=wrong), Target.parse(TARGETS[0]))
    generate(plan, Target.parse(TARGETS[0]))


def test_one_weight_has_one_layout() -> None:
    plan = unit(TARGETS[0]).plan
    wrong = tuple(
        replace(i, attrs={**i.attrs, "group": 64})
        if i.op == "quantized_embedding" and i.attrs["group"] == 32
        else i
        for i in plan.instructions
    )
    with pytest.raises(CodegenError, match="two layouts"):
        generate(replace(plan, instructions=wrong), Target.parse(TARGETS[0]))
