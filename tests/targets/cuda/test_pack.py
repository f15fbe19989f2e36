"""The file of weights: what is written, and where the parts of a matrix lie in it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ingot.artifact.formats import CODED, Format
from ingot.artifact.plan import Plan
from ingot.artifact.tensors import TensorEntry, read_header
from ingot.errors import CheckpointError, InternalError
from ingot.models.gguf.types import BY_NAME
from ingot.ops.scaled import PARTS, Scaled
from ingot.targets.cuda import pack as packing
from ingot.targets.cuda.pack import pack
from ingot.targets.cuda.unpack import unpack
from ingot.targets.cuda.weights import fits, layout_of, nbytes_of, tile_columns
from tests.support import samples
from tests.targets.cuda.matrices import PAIRS, TWO_LEVELS, drawn, in_bits, int4, int8, with_zeros
from tests.targets.sketch import Sketch

FORMATS = (int8(200), int8(32), int4(32, 128), int4(32, 64), int4(64, 64), int4(96, 96))
COLUMNS = {int8(200): 200, int8(32): 96, int4(32, 64): 192, int4(64, 64): 192, int4(96, 96): 96}
# Rows whose last block is short, and those whose last tile is.
SHORT = ((int8(128), 576), (int8(64), 37), (int4(32, 128), 330), (int4(64, 128), 200))
ZEROS = (
    (with_zeros(int4(32, 32)), 96), (with_zeros(int4(128, 128)), 330), (with_zeros(int8(64)), 192),
    (with_zeros(int4(32, 128)), 256), (with_zeros(int4(32, 128)), 330),
    (with_zeros(int4(64, 128)), 200), (with_zeros(int4(16, 64)), 100),
)  # fmt: skip
# Further bits of values, beside the nibbles.
HIGH = tuple(
    (change(in_bits(bits, group, block)), columns)
    for bits in (5, 6)
    for change in (with_zeros, lambda form: form)
    for group, block, columns in ((32, 128, 330), (32, 32, 96), (16, 64, 100), (128, 128, 256))
)


class Parameters(dict[str, Scaled]):
    """The parameters in integers."""

    def matrix(self, name: str) -> Scaled:
        return self[name]


def written(
    path: Path, plan: Plan, dense: Mapping[str, Tensor], integers: Mapping[str, Scaled]
) -> dict[str, tuple[TensorEntry, Tensor]]:
    """Every tensor of the file as bytes."""
    pack(path, plan, dense.__getitem__, Parameters(integers))
    fd = os.open(path, os.O_RDONLY)
    try:
        entries = read_header(fd, path.name).tensors
    finally:
        os.close(fd)
    raw = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
    return {n: (e, raw[e.offset : e.offset + e.nbytes]) for n, e in entries.items()}


def unpacked(data: Tensor, rows: int, columns: int, form: Format) -> Scaled:
    """The matrix in packed bytes."""
    at, tile = layout_of(rows, columns, form), tile_columns(columns, form)
    data_rows = data[: rows * at.row_bytes].view(rows, at.row_bytes)
    values = torch.empty(rows, columns, dtype=torch.int8)
    half = tile if form.bits == 8 else tile // 2
    unit = min(64, half)
    for column in range(columns):
        s, h, t, e = (column % unit // 16, column // 8 % 2, column // 2 % 4, column % 2)
        place = column // tile * half + column % half // unit * unit
        byte = data_rows[:, place + t * (unit // 4) + 4 * s + 2 * h + e]
        if form.bits == 4 and not form.is_two_level:
            byte = (byte >> 4 ^ 8 if column % tile >= half else byte & 15) - 8
        elif form.bits < 8:
            within = place % half + t * (unit // 4) + 4 * s + 2 * h + e
            second = int(column % tile >= half)
            byte = byte >> 4 * second & 15
            if form.bits > 4:
                bits, plane = form.bits - 4, tile * (form.bits - 4) // 8
                first = at.high + column // tile * rows * plane + within % plane
                beside = data[first : first + rows * plane : plane][:rows]
                beside = beside >> 2 * bits * (within // plane) + bits * second
                byte = byte + ((beside % (1 << bits)) << 4)
            byte = stood_for(byte, form)
        values[:, column] = byte.view(torch.int8)
    blocks = form.blocks_of(columns)
    scales = data[at.scales :][: 2 * rows * blocks].view(torch.float16)
    scales = scales.view(blocks, rows).T.float()
    multipliers = zeros = minimums = None
    if form.minimums:
        minimums = data[at.scales :][2 * rows * blocks : 4 * rows * blocks].view(torch.float16)
        minimums = minimums.view(blocks, rows).T.float()
    if form.has_multipliers and form.is_two_level:
        multipliers, zeros = by_pair(data, rows, columns, form)
    elif form.has_multipliers:
        multipliers, zeros = by_group(data, rows, columns, form)
    elif form.zeros:
        found = data[at.zeros : at.zeros + rows * blocks].view(blocks, rows)
        zeros = found.T.view(torch.int8)
    widths = {"block": form.block, "group": form.group}
    return Scaled(values, multipliers, scales, zeros, minimums, **widths)


def stood_for(stored: Tensor, form: Format) -> Tensor:
    """The value of a byte that is stored from 0 on."""
    if form.codes:
        return torch.tensor([CODED[int(each)] for each in stored], dtype=torch.int8)
    return stored if form.minimums else stored - (1 << form.bits - 1)


def by_pair(data: Tensor, rows: int, columns: int, form: Format) -> tuple[Tensor, Tensor | None]:
    """The same of two levels, where what two groups have is one number in two places."""
    at, pairs = layout_of(rows, columns, form), -(-columns // (2 * form.group))
    whole = torch.zeros(2, rows, 2 * pairs, dtype=torch.int8)
    for pair in range(pairs):
        for row in range(rows):
            place = pair * rows + row
            number = int.from_bytes(bytes(data[at.multipliers + 2 * place :][:2]), "little")
            if form.zeros:
                number += int(data[at.zeros + place]) << 16
            bits = f"{number:032b}"[::-1]
            for n in range(4 if form.zeros else 2):
                field = int(bits[n * form.multiplier : (n + 1) * form.multiplier][::-1], 2)
                signed = field - 256 if field > 127 else field
                whole[n // 2, row, 2 * pair + n % 2] = signed
    there = -(-columns // form.group)
    assert not whole[:, :, there:].any()
    return whole[0, :, :there], whole[1, :, :there] if form.zeros else None


def by_group(data: Tensor, rows: int, columns: int, form: Format) -> tuple[Tensor, Tensor | None]:
    """The multipliers and the zeros in packed bytes, group by group."""
    at, tile = layout_of(rows, columns, form), tile_columns(columns, form)
    half, there = tile // form.group // 2, -(-columns // form.group)
    groups = -(-columns // tile) * 2 * half
    multipliers, zeros = torch.empty(2, rows, groups, dtype=torch.int8)
    for group in range(groups):
        tile_at, second = group // (2 * half), group // half % 2
        pairs = (tile_at * rows + torch.arange(rows)) * half + group % half
        nibbles = data[at.multipliers + pairs] >> 4 * second & 15
        multipliers[:, group] = nibbles.to(torch.int8) + (1 if form.zeros else -8)
        zeros[:, group] = data[at.zeros + 2 * pairs + second].view(torch.int8) if form.zeros else 0
    assert not (zeros[:, there:].any() or (multipliers[:, there:] != form.zeros).any())
    return multipliers[:, :there], zeros[:, :there] if form.zeros else None


@pytest.mark.parametrize(
    ("form", "columns"),
    [
        *((form, COLUMNS.get(form, 256)) for form in FORMATS),
        *SHORT,
        *ZEROS,
        *HIGH,
        *PAIRS,
        *TWO_LEVELS.values(),
    ],
    ids=str,
)
def test_integers(
    tmp_path: Path, form: Format, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stacked on their rows, in pieces that end within a source."""
    monkeypatch.setattr(packing, "PIECE_BYTES", 7 * columns)
    parts = {name: drawn(form, rows, columns, rows) for name, rows in (("a", 20), ("b", 30))}
    s = Sketch()
    s.add("w", form, (50, columns), "weight")
    plan = s.plan()
    plan = replace(plan, buffers=(replace(plan.buffer("w"), sources=("a", "b")),))
    entry, data = written(tmp_path / "w", plan, {}, parts)["w"]  # type: ignore[arg-type]
    found = unpacked(data, 50, columns, form)
    assert entry.dtype == "int8"
    whole = torch.cat([part.dequantize() for part in parts.values()])  # type: ignore[union-attr]
    assert torch.equal(found.dequantize(), whole)
    values = torch.cat([part.values for part in parts.values()])  # type: ignore[union-attr]
    assert torch.equal(found.values, values)
    read = unpack(plan.buffer("w"), data[: nbytes_of(plan.buffer("w"))])
    assert isinstance(read, Scaled)
    for part in PARTS:
        one, other = getattr(read, part), getattr(found, part)
        assert (one is None) == (other is None) and (one is None or torch.equal(one, other))


def test_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounded to the dtype of the plan, and aligned."""
    monkeypatch.setattr(packing, "PIECE_BYTES", 100)
    s, rng = Sketch(), torch.Generator().manual_seed(0)
    s.add("vector", "float32", (37,), "weight")
    s.add("matrix", "bfloat16", (5, 37), "weight")
    s.add("half", "float16", (5, 37), "weight")
    given = {"vector": samples.normal(rng, 37).double(), "matrix": samples.normal(rng, 5, 37)}
    given["half"] = samples.normal(rng, 5, 37)
    tensors = written(tmp_path / "w", s.plan(), given, {})
    assert all(entry.offset % 64 == 0 for entry, _ in tensors.values())
    vector = tensors["vector"][1].view(torch.float32)
    assert torch.equal(vector[:37], given["vector"].float())
    matrix = tensors["matrix"][1].view(torch.bfloat16)[: 5 * 37].view(5, 37)
    assert torch.equal(matrix, given["matrix"].bfloat16())
    assert tensors["half"][0].dtype == "float16"
    half = tensors["half"][1].view(torch.float16)[: 5 * 37].view(5, 37)
    assert torch.equal(half, given["half"].half())


@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16])
def test_numbers_beyond_a_dtype_are_refused(tmp_path: Path, source: torch.dtype) -> None:
    s = Sketch()
    s.add("w", "float16", (4, 32), "weight")
    weight = torch.full((4, 32), 65280.0).to(source)
    written(tmp_path / "w", s.plan(), {"w": weight}, {})
    weight[2, 3] = -65536
    with pytest.raises(CheckpointError, match="w has numbers up to 65536, and float16 ends at 655"):
        written(tmp_path / "w", s.plan(), {"w": weight}, {})


@pytest.mark.parametrize("form", [Format("float32"), int8(32)], ids=str)
def test_sources_that_do_not_add_up(tmp_path: Path, form: Format) -> None:
    s = Sketch()
    s.add("w", form, (6, 32), "weight")
    part = drawn(form, 5, 32)
    with pytest.raises(InternalError, match="w "):
        written(tmp_path / "w", s.plan(), {"w": part}, {"w": part})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("form", "digest"),
    [
        (int4(32, 128), "417483fd57d4ff17"),
        (with_zeros(int4(32, 64)), "ef8787049543f50c"),
        (int4(32, 32), "9df037c47e375ff5"),
        (int8(64), "2dfb584c30ba57ad"),
        (with_zeros(in_bits(5, 32, 128)), "746a815e3a3917b3"),
        (in_bits(6, 16, 64), "3ac0fb453654c1e5"),
        (int8(16), "84ee0ca50ff87fd8"),
        (with_zeros(int4(16, 16)), "de00933af584ac38"),
    ],
    ids=str,
)
def test_the_bytes_of_integers_stay(tmp_path: Path, form: Format, digest: str) -> None:
    """Artifacts of earlier versions are read by today's kernels."""
    rows, columns = 6, 192
    at = torch.arange(rows * columns).view(rows, columns)
    bound, groups = 2 ** (form.bits - 1), columns // form.group + (columns % form.group > 0)
    small = torch.arange(rows * groups).view(rows, groups)
    scales = torch.arange(1.0, rows * form.blocks_of(columns) + 1).view(rows, -1)
    matrix = Scaled(
        (at * 7 % (2 * bound - 1) - bound + 1).to(torch.int8),
        (small % 15 + (1 if form.zeros else -8)).to(torch.int8) if form.has_multipliers else None,
        scales,
        (small % 7 - 3).to(torch.int8) if form.zeros else None,
        block=form.block,
        group=form.group,
    )
    s = Sketch()
    s.add("w", form, (rows, columns), "weight")
    _, data = written(tmp_path / "w", s.plan(), {}, {"w": matrix})["w"]
    assert hashlib.sha256(data.numpy().tobytes()).hexdigest()[:16] == digest


@pytest.mark.parametrize("form", [*FORMATS, *(form for form, _ in HIGH)], ids=str)
def test_fits(form: Format) -> None:
    assert fits(COLUMNS.get(form, 256), form)


@pytest.mark.parametrize(("form", "columns"), PAIRS, ids=str)
def test_blocks_in_pairs_fit_at_nearly_their_own_size(form: Format, columns: int) -> None:
    """Scales of a last tile that is one block are those of one block."""
    assert fits(columns, form)
    whole = layout_of(8, columns + -columns % 32, form).nbytes
    assert whole < form.nbytes((8, columns + -columns % 32)) + 4 * 64
    assert layout_of(8, columns, form).nbytes <= whole


def test_a_row_of_one_block_is_no_pair() -> None:
    assert tile_columns(16, int8(16)) == 128
    assert tile_columns(17, int8(16)) == 32


@pytest.mark.parametrize("kind", TWO_LEVELS)
def test_types_of_gguf_files_fit_at_nearly_their_own_size(kind: str) -> None:
    """Where no tile is short; all that is more fills up parts to 64 bytes."""
    form, storage = TWO_LEVELS[kind][0], BY_NAME[kind].storage
    assert storage is not None and storage.of(256) == form
    assert fits(256, form)
    assert form.nbytes((8, 256)) <= layout_of(8, 256, form).nbytes < form.nbytes((8, 256)) + 4 * 64


@pytest.mark.parametrize(
    "columns, form",
    [
        (64, Format("int8", 32, 32)),  # float32 scales
        (96, int8(48)),
        (96, int8(24)),
        (80, int8(20)),
        (32, int4(8, 16)),
        (32, replace(int4(16, 16), minimums=True)),
        (32, replace(int4(16, 16), codes=True)),
        (96, int4(48, 96)),
        (192, int4(64, 192)),
        (96, in_bits(5, 48, 96)),
        (128, replace(int4(32, 128), multiplier=6, zeros=True)),  # zeros that have no minimum
        (128, replace(int4(32, 128), multiplier=8, zeros=True)),
        (128, replace(int4(32, 128), minimums=True, zeros=True)),  # multipliers of 4 bits
        (32, replace(int4(32, 32), minimums=True, zeros=True)),
        (32, replace(int4(32, 32), minimums=True, codes=True)),
        (32, replace(in_bits(5, 32, 32), codes=True)),
        (32, replace(int8(32), minimums=True)),
        (128, replace(int4(8, 128), multiplier=8)),  # two groups are less than a tile
        (192, replace(int4(96, 192), multiplier=8)),
        (64, Format("int32")),
    ],
)
def test_does_not_fit(columns: int, form: Format) -> None:
    assert not fits(columns, form)
