"""The bytes of quantized weights, and what the generator says of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from ingot.artifact.formats import Spans
from ingot.artifact.target import Target
from ingot.errors import CodegenError
from ingot.ops.scaled import Scaled
from ingot.targets.cpu.generate import generate
from ingot.targets.cpu.quantized_panels import block_bytes, fits, pack_quantized, packed_bytes
from tests.targets.cpu.quantized import MATRICES, TARGETS, Matrix, unit


def unpack(packed: Tensor, m: Matrix) -> dict[str, Tensor]:
    """The parts of a matrix, read byte by byte as the page says they lie."""
    raw, size = packed.numpy(), block_bytes(m.bits, m.spans)
    values = np.zeros((m.outputs, m.inputs), np.int8)
    multipliers = np.zeros((m.outputs, m.inputs // m.group), np.int8)
    scales = np.zeros((m.outputs, m.inputs // m.block), np.float32)
    word = m.block // m.group // 2  # bytes of a row's multipliers
    for row in range(m.outputs):
        for k in range(m.inputs):
            block, inside = divmod(k, m.block)
            at = (row // 32 * (m.inputs // m.block) + block) * size
            scales[row, block] = raw[at : at + 64].view(np.float16)[row % 32]
            group = inside // m.group
            byte = int(raw[at + 64 + row % 32 * word + group // 2]) if word else 1
            nibble = byte >> 4 if group % 2 else byte & 15
            multipliers[row, k // m.group] = nibble - 16 if nibble > 7 else nibble
            quad = inside // 4 if m.bits == 8 else inside // 32 * 4 + inside % 16 // 4
            byte = int(raw[at + 64 + 32 * word + quad * 128 + row % 32 * 4 + k % 4])
            if m.bits == 8:
                values[row, k] = byte - 128
            else:
                values[row, k] = (byte & 15 if inside % 32 < 16 else byte >> 4) - 8
    found = {"weight": values, "weight_multipliers": multipliers, "weight_scales": scales}
    return {name: torch.from_numpy(found[name]) for name in m.parts}


@pytest.mark.parametrize("m", MATRICES, ids=lambda m: m.name)
def test_every_part_lies_where_the_page_says(m: Matrix) -> None:
    drawn = m.drawn(torch.Generator().manual_seed(0))
    packed = m.packed(drawn)
    assert packed.nbytes == packed_bytes(m.outputs, m.inputs, m.bits, m.spans)
    found = unpack(packed, m)
    assert found.keys() == drawn.keys()
    assert all(torch.equal(found[name], part) for name, part in drawn.items())


def test_panels_pack_apart() -> None:
    """What a streaming packer relies on: a run of rows that starts a panel packs by itself."""
    m = Matrix(4, 32, 128, 256, 100)
    drawn = m.drawn(torch.Generator().manual_seed(0))
    pieces = [
        m.packed({name: part[rows] for name, part in drawn.items()})
        for rows in (slice(0, 64), slice(64, 96), slice(96, 100))
    ]
    assert torch.equal(torch.cat(pieces), m.packed(drawn))


@pytest.mark.parametrize(
    ("columns", "bits", "group", "block"),
    [
        (100, 8, 32, 32),
        (48, 4, 48, 48),
        (42, 8, 42, 42),
        (64, 5, 32, 32),
        (128, 8, 32, 128),
        (192, 4, 32, 128),
        (768, 4, 32, 96),
    ],
)
def test_what_does_not_fit_is_refused(columns: int, bits: int, group: int, block: int) -> None:
    spans = Spans(group, block)
    assert not fits(columns, bits, spans)
    values = torch.zeros(32, columns, dtype=torch.int8)
    matrix = Scaled(values, None, torch.ones(32, 1))
    with pytest.raises(ValueError, match=f"group={group}, block={block}. of int{bits}"):
        pack_quantized(matrix, bits=bits, spans=spans)


def test_the_generator_tells_the_layout_and_keeps_all_parts_with_their_weight() -> None:
    layouts = {layout.name: layout for layout in unit(TARGETS[0]).generated.weights}
    m = next(m for m in MATRICES if m.spans.has_multipliers and m.bias)
    layout = layouts[f"{m.name}.weight"]
    assert (layout.layout, layout.bits, layout.spans) == ("int4-panels", 4, m.spans)
    assert [name for name in layouts if name.startswith(f"{m.name}.w")] == [layout.name]
    assert layouts[f"{m.name}.bias"].layout == "rows"


@pytest.mark.parametrize(
    "attrs",
    [
        {"group": 48, "block": 48, "bits": 4},
        {"group": 32, "block": 96, "bits": 4},
        {"group": 64, "block": 64, "bits": 8},
    ],
)
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
        replace(i, attrs={**i.attrs, "group": 64, "block": 64})
        if i.op == "quantized_embedding" and i.attrs["bits"] == 8 and i.attrs["block"] == 32
        else i
        for i in plan.instructions
    )
    with pytest.raises(CodegenError, match="two layouts"):
        generate(replace(plan, instructions=wrong), Target.parse(TARGETS[0]))
