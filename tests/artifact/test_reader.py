from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

import pytest

from ingot.artifact.reader import Artifact
from ingot.artifact.tree import check_name
from ingot.errors import ArtifactError, UsageError
from tests.runtime.fake_model import KERNELS, PLAN, WEIGHTS, make_plan, write_fake
from tests.support.odd_files import ODD_PATHS, odd_paths


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return write_fake(tmp_path_factory.mktemp("original") / "fake.ingot")


@pytest.fixture
def copy(original, tmp_path):
    return Path(shutil.copytree(original, tmp_path / "copy.ingot"))


def files_of(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize("check", ["fast", "full"])
def test_an_intact_artifact_is_read(original, check):
    artifact = Artifact.open(original, check)
    assert artifact.plan == make_plan()
    assert artifact.target.name == "cpu:portable"
    assert artifact.names("golden") == ["golden/golden.json"]
    assert artifact.read(KERNELS)[:4] == b"\x7fELF"
    fd, header = artifact.open_weights("cpu-float32")
    os.close(fd)
    assert header.tensors["scale"].nbytes == 64


def test_a_symbolic_link_to_an_artifact_is_followed(original, tmp_path):
    (tmp_path / "current").symlink_to(original)
    assert Artifact.open(tmp_path / "current").manifest.model.name == "fake"


@pytest.mark.thorough
def test_no_flipped_bit_gets_through_a_full_check(copy):
    rng = random.Random(1)
    for path in files_of(copy):
        data = path.read_bytes()
        for _ in range(40):
            index = rng.randrange(len(data))
            path.write_bytes(flip(data, index, rng.randrange(8)))
            with pytest.raises(ArtifactError, match=path.name):
                Artifact.open(copy, "full")
        path.write_bytes(data)
    Artifact.open(copy, "full")


def test_the_fast_check_misses_flipped_bits_in_tensors_and_nowhere_else(copy):
    rng = random.Random(2)
    for path in files_of(copy):
        data = path.read_bytes()
        is_weights = path.suffix == ".safetensors"
        end = 8 + int.from_bytes(data[:8], "little") if is_weights else len(data)
        for index in {0, end - 1, *(rng.randrange(end) for _ in range(40))}:
            path.write_bytes(flip(data, index, rng.randrange(8)))
            with pytest.raises(ArtifactError, match=path.name):
                Artifact.open(copy, "fast")
        if is_weights:
            path.write_bytes(flip(data, end, 0))
            Artifact.open(copy, "fast")
        path.write_bytes(data)


def flip(data: bytes, index: int, bit: int) -> bytes:
    changed = bytearray(data)
    changed[index] ^= 1 << bit
    return bytes(changed)


def test_a_file_of_any_other_length_is_refused(copy):
    rng = random.Random(3)
    for path in files_of(copy):
        data = path.read_bytes()
        lengths = {0, 1, 7, 8, 9, len(data) - 1, *(rng.randrange(len(data)) for _ in range(80))}
        for length in sorted(lengths):
            path.write_bytes(data[:length])
            with pytest.raises(ArtifactError, match=path.name):
                Artifact.open(copy)
        path.write_bytes(data + b"\n")
        with pytest.raises(ArtifactError, match=path.name):
            Artifact.open(copy)
        path.write_bytes(data)


def test_a_missing_file_is_named(copy):
    for path in files_of(copy):
        data = path.read_bytes()
        path.unlink()
        with pytest.raises(ArtifactError, match=rf"{path.name}.*(missing|has no)|has no"):
            Artifact.open(copy)
        path.write_bytes(data)


@pytest.mark.parametrize("name", ["extra.json", "targets/extra", ".hidden", "a b", "new\n"])
def test_an_extra_file_is_named(copy, name):
    (copy / name).write_bytes(b"")
    with pytest.raises(ArtifactError, match=r"not in the manifest|not a file name"):
        Artifact.open(copy)


def test_two_files_that_changed_places_are_refused(copy):
    one, other = copy / PLAN, copy / "golden/golden.json"
    data = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(data)
    with pytest.raises(ArtifactError, match=r"plan\.json|golden\.json"):
        Artifact.open(copy)


@pytest.mark.parametrize("name", [KERNELS, WEIGHTS, "manifest.json", "tokenizer/tokenizer.json"])
def test_links_and_pipes_are_refused(copy, original, name):
    (copy / name).unlink()
    (copy / name).symlink_to(original / name)
    with pytest.raises(ArtifactError, match=Path(name).name):
        Artifact.open(copy)
    (copy / name).unlink()
    os.mkfifo(copy / name)
    with pytest.raises(ArtifactError, match=r"regular file"):
        Artifact.open(copy)


def test_a_linked_folder_is_refused(copy, original):
    shutil.rmtree(copy / "golden")
    (copy / "golden").symlink_to(original / "golden")
    with pytest.raises(ArtifactError, match="golden is not a regular file"):
        Artifact.open(copy)


@pytest.mark.parametrize(
    "name",
    [
        *("", "/etc/passwd", "../up", "a/../b", "a//b", "a/", "./a", "a\\b", "a\x00b", "a\n", "é"),
        *("-a", "/".join("a" * 9), "a" * 129),
    ],
)
def test_names_that_leave_the_artifact_or_confuse_are_refused(name):
    with pytest.raises(ArtifactError):
        check_name(name)


def test_ordinary_names_are_allowed():
    check_name("targets/cpu-x86-64-v4+avx512_bf16/source/step.cpp")


def test_read_returns_the_hashed_bytes_or_nothing(copy):
    artifact = Artifact.open(copy)
    data = artifact.read(KERNELS)
    (copy / KERNELS).write_bytes(flip(data, 100, 3))
    with pytest.raises(ArtifactError, match=r"kernels\.so: its hash"):
        artifact.read(KERNELS)


def test_weights_changed_after_the_check_are_seen_by_size_and_header(copy):
    artifact = Artifact.open(copy)
    data = (copy / WEIGHTS).read_bytes()
    for bad in (data[:-64], flip(data, 30, 1)):
        (copy / WEIGHTS).write_bytes(bad)
        with pytest.raises(ArtifactError, match=r"cpu-float32\.safetensors"):
            artifact.open_weights("cpu-float32")


def test_what_is_no_artifact_is_said_to_be_none(tmp_path):
    (tmp_path / "file").write_text("x")
    for path, what in (("file", "is a file"), ("none", "does not exist"), (".", "has no manifest")):
        with pytest.raises(ArtifactError, match=what):
            Artifact.open(tmp_path / path)


def test_an_unfinished_folder_is_refused_even_when_it_is_complete(original, tmp_path, monkeypatch):
    folder = tmp_path / ".fake.ingot.tmp-123-0badcafe"
    shutil.copytree(original, folder)
    (tmp_path / "link.ingot").symlink_to(folder)
    monkeypatch.chdir(folder)
    for path in (folder, tmp_path / "link.ingot", ".", "manifest/.."):
        (folder / "manifest").mkdir(exist_ok=True)
        with pytest.raises(ArtifactError, match="never finished"):
            Artifact.open(path)


def test_an_unknown_kind_of_check_is_refused(original):
    with pytest.raises(UsageError, match="quick"):
        Artifact.open(original, "quick")


@pytest.mark.parametrize("name", ODD_PATHS)
def test_a_path_that_no_artifact_can_be_at_is_refused(name, tmp_path):
    with pytest.raises(ArtifactError, match="does not exist"):
        Artifact.open(odd_paths(tmp_path)[name])


def test_files_that_vanish_while_they_are_listed_are_an_error_of_the_artifact(copy, monkeypatch):
    def gone(*_: object) -> None:
        raise FileNotFoundError(2, "No such file or directory", str(copy / "golden"))

    monkeypatch.setattr(os, "scandir", gone)
    with pytest.raises(ArtifactError, match=r"cannot be read: .*golden"):
        Artifact.open(copy)


def test_a_header_swapped_after_opening_is_seen(copy):
    """One that fits the file as well: its tensors merely have changed places."""
    artifact = Artifact.open(copy)
    data = (copy / WEIGHTS).read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    names = list(header)
    swapped = dict(zip(names, reversed(header.values()), strict=True))
    assert swapped != header
    text = json.dumps(swapped, separators=(",", ":")).encode().ljust(end - 8)
    assert len(text) == end - 8
    (copy / WEIGHTS).write_bytes(data[:8] + text + data[end:])
    with pytest.raises(ArtifactError, match="header is not the manifest's"):
        artifact.open_weights("cpu-float32")
