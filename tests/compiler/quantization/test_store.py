"""The temporary file of quantized matrices: what goes in comes out, and nothing is left behind."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from ingot.artifact.formats import Format
from ingot.compiler.quantization.search import quantize_rows
from ingot.compiler.quantization.store import QuantizedWeights
from ingot.errors import InternalError, ResourceError
from ingot.ops.scaled import Scaled, stack
from tests.compiler.quantization.integers import integers

FORMS = {"a": integers(8, 32), "b": integers(4, 32, 128), "c": integers(8, 256)}
FORMS |= {"short": integers(8, 96), "short groups": integers(4, 96, 192)}  # of 256 columns


def read(name: str) -> torch.Tensor:
    return torch.full((2, 3), float(len(name)), dtype=torch.bfloat16)


def matrix(seed: int, form: Format, rows: int = 6) -> Scaled:
    rng = torch.Generator().manual_seed(seed)
    return quantize_rows(torch.randn(rows, 256, generator=rng), form)


def same(one: Scaled, other: Scaled) -> bool:
    for part, own in ((one.multipliers, other.multipliers), (one.zeros, other.zeros)):
        if part is None or own is None:
            if part is not own:
                return False
        elif not torch.equal(part, own):
            return False
    values = torch.equal(one.values, other.values) and one.values.dtype == other.values.dtype
    scales = torch.equal(one.scales, other.scales) and one.scales.dtype == other.scales.dtype
    widths = (one.block, one.group) == (other.block, other.group)
    return values and scales and widths


def test_matrices_come_out_as_they_went_in_whatever_is_read_between(tmp_path: Path) -> None:
    made = {name: matrix(seed, form) for seed, (name, form) in enumerate(FORMS.items())}
    with QuantizedWeights(read, tmp_path) as weights:
        for name, whole in made.items():
            assert name not in weights
            weights.add(name, FORMS[name].bits, [whole])
            assert name in weights
            assert same(weights.matrix("a"), made["a"])  # leaves the file's position behind it
        for name in reversed(made):
            assert same(weights.matrix(name), made[name])
            assert torch.equal(weights.read(name), made[name].dequantize())


@pytest.mark.parametrize("columns", [1, 8, 9])
def test_integers_of_four_bits_come_out_of_their_halves_of_bytes(
    columns: int, tmp_path: Path
) -> None:
    values = torch.arange(-8, 8, dtype=torch.int8)[:, None] + torch.zeros(columns, dtype=torch.int8)
    values[1::2] = values[1::2].flip(0)
    whole = Scaled(values, values[:, :1], torch.ones(16, 1), block=columns, group=columns)
    less = Scaled(values, None, torch.ones(16, 1), values[:, -1:], block=columns)
    with QuantizedWeights(read, tmp_path) as weights:
        weights.add("whole", 4, [whole[:5], whole[5:]])
        weights.add("less", 4, [less[:5], less[5:]])
        assert same(weights.matrix("whole"), whole) and same(weights.matrix("less"), less)


def test_a_matrix_takes_the_bytes_of_its_format(tmp_path: Path) -> None:
    with QuantizedWeights(read, tmp_path) as weights:
        for name, form in FORMS.items():
            before = os.fstat(weights._file.fileno()).st_size
            weights.add(name, form.bits, [matrix(0, form)])
            size = os.fstat(weights._file.fileno()).st_size - before
            bytes_of_multipliers = 6 * 256 // form.group // 2 if form.has_multipliers else 0
            expected = form.nbytes([6, 256]) + bytes_of_multipliers  # which are not in nibbles
            assert expected - 6 <= size <= expected + 6, name


def test_another_thread_reads_beside_with_an_ear_of_its_own(tmp_path: Path) -> None:
    made = {name: matrix(seed, form) for seed, (name, form) in enumerate(FORMS.items())}
    told: dict[str, list[str]] = {"here": [], "there": []}
    with QuantizedWeights(read, tmp_path) as weights:
        for name, whole in made.items():
            weights.add(name, FORMS[name].bits, [whole])
        other = weights.beside(lambda name: read(name) + 1, told["there"].append)
        weights.on_read = told["here"].append

        def all_same(store: QuantizedWeights) -> bool:
            return all(same(store.matrix(name), made[name]) for _ in range(50) for name in made)

        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(all_same, (weights, other))) == [True, True]
        assert told["here"] == told["there"] == 50 * list(made)
        assert torch.equal(other.read("norm"), weights.read("norm") + 1)


def test_what_is_stored_in_integers_is_given_so(tmp_path: Path) -> None:
    with QuantizedWeights(read, tmp_path) as weights:
        weights.add("a", 8, [matrix(0, FORMS["a"])])
        told: list[str] = []
        weights.on_read = told.append
        given, plain = weights.stored("a"), weights.stored("norm")
        assert isinstance(given, Scaled) and same(given, matrix(0, FORMS["a"]))
        assert torch.equal(plain, read("norm")) and told == ["a", "norm"]


def test_a_file_that_is_cut_off_is_no_matrix(tmp_path: Path) -> None:
    with QuantizedWeights(read, tmp_path) as weights:
        weights.add("a", 8, [matrix(0, FORMS["a"])])
        os.truncate(weights._file.fileno(), 100)
        with pytest.raises(InternalError, match="cut off"):
            weights.matrix("a")


def test_pieces_are_one_matrix(tmp_path: Path) -> None:
    with QuantizedWeights(read, tmp_path) as weights:
        for name, form in FORMS.items():
            rows = torch.randn(7, 256, generator=torch.Generator().manual_seed(1))
            pieces = [quantize_rows(part, form) for part in rows.split(3)]
            weights.add(name, form.bits, iter(pieces))
            assert same(weights.matrix(name), stack(pieces))


def test_a_matrix_that_is_added_again_is_the_new_one(tmp_path: Path) -> None:
    with QuantizedWeights(read, tmp_path) as weights:
        for seed in (1, 2):
            weights.add("a", 8, [matrix(seed, FORMS["a"])])
        assert same(weights.matrix("a"), matrix(2, FORMS["a"]))


def test_other_parameters_are_read_as_they_are(tmp_path: Path) -> None:
    with QuantizedWeights(read, tmp_path) as weights:
        assert torch.equal(weights.read("norm"), read("norm"))
        assert weights.read("norm").dtype == torch.bfloat16


def test_each_reading_is_told_once(tmp_path: Path) -> None:
    told: list[str] = []
    with QuantizedWeights(read, tmp_path) as weights:
        weights.add("a", 8, [matrix(0, FORMS["a"])])
        weights.on_read = told.append
        weights.add("b", 4, [matrix(1, FORMS["b"])])
        assert told == []
        weights.read("a"), weights.read("norm"), weights.matrix("b")
        assert told == ["a", "norm", "b"]


def test_the_file_is_in_the_folder_nameless_and_gone_after(tmp_path: Path) -> None:
    def held() -> list[str]:
        links = [os.path.join("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd")]
        return [os.readlink(link) for link in links if os.path.lexists(link)]

    with QuantizedWeights(read, tmp_path) as weights:
        weights.add("a", 8, [matrix(0, FORMS["a"])])
        assert any(path.startswith(str(tmp_path)) for path in held())
        assert list(tmp_path.iterdir()) == []
    assert not any(path.startswith(str(tmp_path)) for path in held())


@pytest.mark.parametrize("rows", [1, 6, 4000], ids=["within the buffer", "small", "large"])
def test_a_full_disk_is_no_fault_of_ingot(rows: int, tmp_path: Path) -> None:
    with QuantizedWeights(read, tmp_path) as weights:
        full = os.open("/dev/full", os.O_RDWR)
        os.dup2(full, weights._file.fileno())
        os.close(full)
        with pytest.raises(ResourceError, match="No space left") as caught:
            weights.add("a", 8, [matrix(0, FORMS["a"], rows)])
    assert "twice on the disk of the artifact" in caught.value.hint
