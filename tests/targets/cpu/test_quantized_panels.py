"""The bytes of quantized weights, and what the generator says of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from ingot.artifact.formats import CODED, Format
from ingot.ops.scaled import Scaled
from ingot.targets.cpu.pack import pack_quantized
from ingot.targets.cpu.weights import block_bytes, fits, packed_bytes
from tests.targets.cpu.matrices import MATRICES, Matrix, int4


def unpack(packed: Tensor, m: Matrix) -> Scaled:
    """A matrix, read byte by byte as the page says it lies."""
    form = m.form
    raw, pair = packed.numpy(), 2 if form.bits < 8 and form.block == 16 else 1
    size = block_bytes(form, form.block * pair)
    values = np.zeros((m.outputs, m.inputs), np.int16)
    multipliers = np.zeros((m.outputs, m.groups), np.int8)
    scales = np.zeros((m.outputs, form.blocks_of(m.inputs)), np.float32)
    zeros = np.zeros((m.outputs, m.groups), np.int8)
    minimums = np.zeros_like(scales)
    less, groups = 0 if form.minimums else 1 << (form.bits - 1), form.block // form.group
    word = groups * (form.multiplier + form.multiplier * form.minimums) // 8 * (groups > 1)
    first = 64 * (pair + form.minimums)
    weights_at = first + 32 * (word + pair * groups * (form.zeros and not form.minimums))
    for row in range(m.outputs):
        for k in range(m.inputs):
            block, inside = divmod(k, form.block)
            at = row // 32 * (len(raw) // -(-m.outputs // 32)) + block // pair * size
            scales[row, block] = raw[at + block % pair * 64 :][:64].view(np.float16)[row % 32]
            group = inside // form.group + block % pair
            place = row, k // form.group
            if form.minimums:
                minimums[row, block] = raw[at + 64 : at + 128].view(np.float16)[row % 32]
            if form.multiplier == 6:
                words = raw[at + first + group // 4 * 192 :][:192]
                multipliers[place], zeros[place] = six_bits(words, row % 32, group % 4)
            elif form.multiplier == 8:
                multipliers[place] = int(raw[at + first + 32 * group + row % 32]) - 128
            else:
                byte = int(raw[at + first + row % 32 * word + group // 2]) if word else 1
                nibble = byte >> 4 if group % 2 else byte & 15
                signed = nibble - 16 if nibble > 7 else nibble
                factor = signed + 9 if form.zeros and word else signed
                multipliers[place] = factor
                if form.zeros:
                    taken_off = int(raw[at + first + 32 * (word + group) + row % 32])
                    zeros[place] = taken_off - (128 + less * factor if word else less)
            values[row, k] = stored_value(
                raw[at + weights_at + row % 32 * 4 :], form.bits, k % (form.block * pair)
            )
    values = np.array(CODED, np.int16)[values] if form.codes else values - less
    found = torch.from_numpy(multipliers) if form.has_multipliers else None
    own = torch.from_numpy(zeros) if form.zeros else None
    lowest = torch.from_numpy(minimums) if form.minimums else None
    scaled = torch.from_numpy(values.astype(np.int8)), found, torch.from_numpy(scales), own, lowest
    return Scaled(*scaled, block=form.block, group=form.group)


def six_bits(words: NDArray[np.uint8], row: int, group: int) -> tuple[int, int]:
    """The multiplier and the zero of one of four groups."""
    lower = int(words[row * 4 :][:4].view(np.uint32)[0])
    upper = int(words[128 + row * 2 :][:2].view(np.uint16)[0])
    zero = [0, 4, 1, 5][group]  # the place among the eight numbers of the words

    def number(place: int) -> int:
        return (lower >> 4 * place & 15) | (upper >> 2 * place & 3) << 4

    return number(zero + 2), number(zero)


def stored_value(column: NDArray[np.uint8], bits: int, k: int) -> int:
    """The unsigned weight k of a block whose weights lie every 128 bytes from here on."""
    if bits == 8:
        return int(column[k // 4 * 128 + k % 4])
    part, quad, inside = k // 32 * bits * 128, k % 32 // 4, k % 4
    byte = int(column[part + quad % 4 * 128 + inside])
    lower = byte & 15 if quad < 4 else byte >> 4
    if bits == 4:
        return lower
    line, shift = {5: (4, quad), 6: (4 + quad // 4, quad % 4 * 2)}[bits]
    above = int(column[part + line * 128 + inside]) >> shift
    return lower | (above % (1 << (bits - 4))) << 4


def same(one: Scaled, other: Scaled) -> bool:
    parts = one.parts()
    assert parts.keys() == other.parts().keys()
    return all(torch.equal(part, other.parts()[name]) for name, part in parts.items())


@pytest.mark.cases(core=5)
@pytest.mark.parametrize("m", MATRICES, ids=lambda m: m.name)
def test_every_part_lies_where_the_page_says(m: Matrix) -> None:
    drawn = m.drawn(torch.Generator().manual_seed(0))
    packed = pack_quantized(drawn, m.form)
    assert packed.nbytes == packed_bytes(m.outputs, m.inputs, m.form)
    assert same(unpack(packed, m), drawn)


def test_panels_pack_apart() -> None:
    """What a streaming packer relies on: a run of rows that starts a panel packs by itself."""
    m = Matrix(int4(32, 128), 256, 100)
    drawn = m.drawn(torch.Generator().manual_seed(0))
    pieces = [
        pack_quantized(drawn[rows], m.form)
        for rows in (slice(0, 64), slice(64, 96), slice(96, 100))
    ]
    assert torch.equal(torch.cat(pieces), pack_quantized(drawn, m.form))


@pytest.mark.parametrize(
    ("columns", "bits", "group", "block"),
    [
        (100, 8, 42, 42),
        (100, 4, 48, 48),
        (128, 8, 32, 128),
        (768, 4, 32, 96),
        (128, 4, 16, 128),
    ],
)
def test_what_does_not_fit_is_refused(columns: int, bits: int, group: int, block: int) -> None:
    form = Format("int8" if bits == 8 else "int4", block, group, "float16")
    assert not fits(columns, form)
    values = torch.zeros(32, columns, dtype=torch.int8)
    matrix = Scaled(values, None, torch.ones(32, 1), block=columns)
    with pytest.raises(ValueError, match=f"{columns} columns do not pack as {form}"):
        pack_quantized(matrix, form)


def test_a_format_of_other_numbers_does_not_fit() -> None:
    assert not fits(64, Format("float16", 32, 32, "float16"))
