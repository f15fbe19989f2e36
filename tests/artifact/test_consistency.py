"""A manifest that is intact, and disagrees with its files or with itself."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ingot.artifact import reader
from ingot.artifact.codec import decode_manifest, encode_manifest, encode_plan
from ingot.artifact.manifest import FileEntry, Manifest, ProgramEntry
from ingot.artifact.plan import MemoryPlan
from ingot.artifact.reader import Artifact
from ingot.artifact.tree import UNFINISHED, check_name, is_artifact, list_files
from ingot.artifact.writer import ArtifactWriter
from ingot.errors import ArtifactError, IncompatibleHostError
from tests.runtime.fake_model import KERNELS, LIMITS, PLAN, WEIGHTS, make_plan, write_fake
from tests.support.open_files import open_files

OTHER = "targets/other/plan.json"
OTHER_PLAN = replace(make_plan(), memory=MemoryPlan(arena_bytes=64))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It has the plan of another target, which its manifest does not name."""
    path = tmp_path_factory.mktemp("original") / "fake.ingot"
    files = {OTHER: encode_plan(OTHER_PLAN), "golden-old/x": b"x"}
    return write_fake(path, files=files)


@pytest.fixture
def copy(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "copy.ingot"))


def with_manifest(root: Path, change: Callable[[Manifest], Manifest]) -> Path:
    """The artifact, its manifest changed and sealed again."""
    path = root / "manifest.json"
    path.write_bytes(encode_manifest(change(decode_manifest(path.read_bytes()))))
    return root


def programs(manifest: Manifest, **named: ProgramEntry) -> Manifest:
    (target,) = manifest.targets
    target = replace(target, programs=target.programs | named)
    return replace(manifest, targets=(target,))


def two_targets(manifest: Manifest) -> Manifest:
    (first,) = manifest.targets
    step = ProgramEntry(plan=OTHER, kernels=KERNELS)
    second = replace(first, name="cpu:x86-64-v3", requires=("avx2", "fma"), programs={"step": step})
    return replace(manifest, targets=(replace(first, requires=("x86_64",)), second))


MORE_FILES = {"../up": FileEntry(size=0, sha256="0" * 64)}
FAULTS: dict[str, tuple[Callable[[Manifest], Manifest], str]] = {
    "no target": (lambda m: replace(m, targets=()), "lists no target"),
    "no plan": (
        lambda m: programs(m, step=ProgramEntry(plan="targets/x", kernels=KERNELS)),
        "targets/x is not in the manifest",
    ),
    "no kernels": (
        lambda m: programs(m, step=ProgramEntry(plan=PLAN, kernels="targets/x")),
        "targets/x is not in the manifest",
    ),
    "no kernels of another program": (
        lambda m: programs(m, vision=ProgramEntry(plan=PLAN, kernels="targets/y")),
        "targets/y is not in the manifest",
    ),
    "no weights": (
        lambda m: replace(m, targets=(replace(m.targets[0], layout="cpu-int4"),)),
        "weights/cpu-int4.safetensors is not in the manifest",
    ),
    "a file outside": (lambda m: replace(m, files=m.files | MORE_FILES), r"\.\./up"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_manifest_that_names_what_is_not_there_is_refused(copy: Path, fault: str) -> None:
    change, said = FAULTS[fault]
    with pytest.raises(ArtifactError, match=rf"copy\.ingot: .*{said}") as info:
        Artifact.open(with_manifest(copy, change))
    assert "Compile it again" in info.value.hint


def test_limits_of_the_plan_are_those_of_the_manifest(copy: Path) -> None:
    other = replace(LIMITS, max_num_seqs=7)
    artifact = Artifact.open(with_manifest(copy, lambda m: replace(m, limits=other)))
    with pytest.raises(ArtifactError, match=r"plan\.json is for .*=6.* the manifest for .*=7"):
        artifact.plan  # noqa: B018


@pytest.mark.parametrize(
    ("flags", "plan"),
    [
        ({"x86_64", "avx2", "fma"}, OTHER_PLAN),
        ({"x86_64", "avx2"}, make_plan()),
        ({"aarch64"}, make_plan()),
        (set(), make_plan()),
    ],
)
def test_the_plan_is_that_of_the_best_target_or_of_the_first(copy: Path, flags, plan) -> None:
    artifact = Artifact.open(with_manifest(copy, two_targets), flags=frozenset(flags))
    assert artifact.plan == plan
    assert artifact.plan_of(artifact.manifest.targets[1]) == OTHER_PLAN


def test_a_host_may_be_said_to_have_nothing(copy: Path) -> None:
    artifact = Artifact.open(with_manifest(copy, two_targets), flags=frozenset())
    with pytest.raises(IncompatibleHostError, match=r"copy\.ingot has no target for this host"):
        artifact.target  # noqa: B018


def test_names_are_those_of_one_folder_in_order(original: Path) -> None:
    artifact = Artifact.open(original)
    assert artifact.names("golden") == ["golden/golden.json"]
    assert artifact.names("targets") == sorted(
        path.relative_to(original).as_posix()
        for path in (original / "targets").rglob("*")
        if path.is_file()
    )


def test_manifests_may_be_long_but_not_without_end(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = with_manifest(copy, lambda m: replace(m, model=replace(m.model, name="x" * 10**6)))
    size = (copy / "manifest.json").stat().st_size
    assert Artifact.open(long).manifest.model.name == "x" * 10**6
    monkeypatch.setattr(reader, "MAX_MANIFEST_BYTES", size)
    Artifact.open(copy)
    monkeypatch.setattr(reader, "MAX_MANIFEST_BYTES", size - 1)
    with pytest.raises(ArtifactError, match="larger than"):
        Artifact.open(copy)
    os.truncate(copy / "manifest.json", 1 << 42)  # no memory holds it
    with pytest.raises(ArtifactError, match="larger than"):
        Artifact.open(copy)


def test_files_that_change_while_they_are_open_are_told_and_closed(copy: Path) -> None:
    artifact = Artifact.open(copy)
    before = open_files()
    (copy / WEIGHTS).write_bytes(bytes(64))
    with pytest.raises(ArtifactError, match=r"cpu-float32\.safetensors"):
        artifact.open_weights("cpu-float32")
    data = (copy / KERNELS).read_bytes()
    (copy / KERNELS).write_bytes(data[:-1])
    told = f"{len(data) - 1} bytes, the manifest has {len(data)}"
    with pytest.raises(ArtifactError, match=rf"kernels\.so: {told}"):
        artifact.read(KERNELS)
    (copy / KERNELS).unlink()
    (copy / "same").write_bytes(data)
    (copy / KERNELS).symlink_to(copy / "same")
    with pytest.raises(ArtifactError, match=r"kernels\.so"):
        artifact.read(KERNELS)
    assert open_files() <= before
    with pytest.raises(KeyError):
        artifact.read("targets/none")


def test_a_folder_is_held_as_long_as_its_artifact_lives(copy: Path) -> None:
    before = open_files()
    one, other = Artifact.open(copy), Artifact.open(copy)
    opened = open_files() - before
    assert [each.split(maxsplit=1)[1] for each in opened if str(copy) in each] == [str(copy)] * 2
    del one, other
    for damage in ("golden/golden.json", "manifest.json"):
        (copy / damage).write_bytes(b"")
        with pytest.raises(ArtifactError):
            Artifact.open(copy)
    assert open_files() <= before


def test_an_artifact_has_a_manifest_that_is_a_file(tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.json"
    assert not is_artifact(tmp_path)
    manifest.mkdir()
    assert not is_artifact(tmp_path)
    manifest.rmdir()
    manifest.symlink_to("gone")
    assert not is_artifact(tmp_path)
    (tmp_path / "gone").write_text("")
    assert is_artifact(tmp_path)


def test_names_go_as_far_as_they_may() -> None:
    check_name("a" * 128)
    check_name("/".join("abcdefgh"))
    for name in ("a" * 129, "a/" + "b" * 129, "/".join("abcdefghi")):
        with pytest.raises(ArtifactError, match="is not a file name"):
            check_name(name)


@pytest.mark.parametrize("name", ["a b", ".hidden", "new\n", "é", "f/-x"])
def test_a_file_of_an_odd_name_is_told_by_it(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("")
    with pytest.raises(ArtifactError, match="is not a file name"):
        list_files(tmp_path)


def test_links_are_not_among_the_files(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "file").write_text("")
    assert list_files(tmp_path) == {"f/file"}
    (tmp_path / "f" / "link").symlink_to("file")
    with pytest.raises(ArtifactError, match="f/link is not a regular file"):
        list_files(tmp_path)


def test_only_folders_of_writers_are_unfinished(tmp_path: Path) -> None:
    assert UNFINISHED.match(ArtifactWriter(tmp_path / "a.ingot").directory.name)
    for name in ("a.ingot", ".a.tmp-notes", ".a.tmp-12", "a.tmp-12-ab", ".a.tmp-1-ab.ingot"):
        assert not UNFINISHED.match(name)
