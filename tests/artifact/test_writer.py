from __future__ import annotations

import errno
import hashlib
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event

import pytest

import ingot.artifact.folder as folder_module
from ingot.artifact.hashing import hash_file
from ingot.artifact.lock import file_lock
from ingot.artifact.reader import Artifact
from ingot.artifact.writer import ArtifactWriter
from ingot.errors import ArtifactError, ResourceError, UsageError
from tests.runtime.fake_model import make_manifest, write_fake
from tests.support.core import core
from tests.support.odd_files import ODD_PATHS, odd_paths

ROOT = Path(__file__).resolve().parents[2]


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_same_files_give_the_same_artifact(tmp_path):
    one = write_fake(tmp_path / "one" / "a.ingot")
    old = os.umask(0o077)
    try:
        other = write_fake(tmp_path / "other" / "b.ingot")
    finally:
        os.umask(old)
    assert (one / "manifest.json").read_bytes() == (other / "manifest.json").read_bytes()
    modes = {(p.is_dir(), p.stat().st_mode & 0o777) for p in (other, *other.rglob("*"))}
    assert modes == {(True, 0o755), (False, 0o644)}
    changed = write_fake(tmp_path / "changed.ingot", files={"golden/more.json": b"{}"})
    assert Artifact.open(changed).manifest.digest != Artifact.open(one).manifest.digest


def test_nothing_but_the_artifact_is_left(tmp_path):
    write_fake(tmp_path / "a.ingot")
    assert names_in(tmp_path) == ["a.ingot"]


def test_an_artifact_is_replaced_and_open_files_stay_good(tmp_path):
    path = write_fake(tmp_path / "a.ingot")
    with (path / "golden/golden.json").open("rb") as held:
        write_fake(path, files={"golden/golden.json": b"new"})
        assert held.read() != b"new"
    assert (path / "golden/golden.json").read_bytes() == b"new"
    assert names_in(tmp_path) == ["a.ingot"]


def test_replacing_works_without_the_exchange_of_names(tmp_path, monkeypatch):
    path = write_fake(tmp_path / "a.ingot")
    monkeypatch.setattr(folder_module, "_exchange", lambda source, path: False)
    write_fake(path, files={"golden/golden.json": b"new"})
    assert Artifact.open(path).read("golden/golden.json") == b"new"
    assert names_in(tmp_path) == ["a.ingot"]


def write_and_fail(path: Path, error: BaseException) -> None:
    with ArtifactWriter(path) as writer:
        writer.write("golden/x", b"1")
        raise error


def test_leaving_early_leaves_what_was_there(tmp_path):
    path = write_fake(tmp_path / "a.ingot")
    before = Artifact.open(path).manifest
    with ArtifactWriter(path) as writer:
        writer.write("golden/x", b"1")
    with pytest.raises(KeyboardInterrupt):
        write_and_fail(path, KeyboardInterrupt())
    assert Artifact.open(path).manifest == before
    assert names_in(tmp_path) == ["a.ingot"]


def test_what_is_no_artifact_is_never_replaced(tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("precious")
    (tmp_path / "file").write_text("precious")
    web = tmp_path / "web"
    web.mkdir()
    (web / "manifest.json").write_text('{"name": "my web app"}')
    (tmp_path / "link").symlink_to(write_fake(tmp_path / "a.ingot"))
    notes = write_fake(tmp_path / "b.ingot") / "notes.txt"
    notes.write_text("precious")
    refused = {
        "mine": "exists and is not an artifact",
        "file": "exists and is not an artifact",
        "web": "exists and is not an artifact",
        "link": "is a symbolic link",
        "b.ingot": "holds notes.txt, which is no part of an artifact",
    }
    for name, reason in refused.items():
        with pytest.raises(UsageError, match=f"{name} {reason}"):
            write_fake(tmp_path / name)
    assert (mine / "thesis.txt").read_text() == notes.read_text() == "precious"
    assert (web / "manifest.json").exists() and (tmp_path / "link").is_symlink()
    (tmp_path / "empty").mkdir()
    write_fake(tmp_path / "empty")


def test_a_damaged_artifact_may_be_replaced(tmp_path):
    path = write_fake(tmp_path / "a.ingot")
    manifest = path / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:200])
    write_fake(path)
    Artifact.open(path)


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", ".x", "a/"])
def test_files_outside_of_the_artifact_are_refused(tmp_path, name):
    with pytest.raises(ArtifactError), ArtifactWriter(tmp_path / "a.ingot") as writer:
        writer.write(name, b"")
    assert names_in(tmp_path) == []


def test_a_link_among_the_files_is_refused(tmp_path):
    with ArtifactWriter(tmp_path / "a.ingot") as writer:
        (writer.directory / "golden").symlink_to("/etc")
        with pytest.raises(ArtifactError, match="not a regular file"):
            writer.commit(make_manifest())


@pytest.mark.cases(core=4)
@pytest.mark.parametrize("where", ["write", "fsync", "rename", "mkdir", "body"])
@pytest.mark.parametrize("existing", [True, False])
def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch, where, existing):
    path = tmp_path / "a.ingot"
    if existing:
        write_fake(path)
    before = names_in(tmp_path)

    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def full(*args, **kwargs):
        raise error

    with monkeypatch.context() as patch:
        if where == "write":
            patch.setattr(Path, "write_bytes", full)  # the manifest, when all else is written
        elif where == "rename":
            patch.setattr(folder_module, "_put_in_place", full)
        elif where != "body":
            patch.setattr(os, where, full)
        body = partial(write_and_fail, path, error)
        attempt = body if where == "body" else partial(write_fake, path)
        with pytest.raises(ResourceError, match="No space") as info:
            attempt()
    assert info.value.exit_code == 5
    assert names_in(tmp_path) == before
    write_fake(path)


@pytest.mark.parametrize("name", ODD_PATHS)
def test_a_path_that_nothing_can_be_written_at_is_refused(tmp_path, name):
    with pytest.raises(UsageError, match="cannot be written") as info:
        write_fake(Path(odd_paths(tmp_path)[name]))
    assert info.value.hint
    assert names_in(tmp_path) == ["file", "loop"]


def test_everything_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """A machine that loses its power never comes back with a name and half of what it names."""
    path = tmp_path / "a.ingot"
    synced, events = set(), []
    fsync, put_in_place = os.fsync, folder_module._put_in_place

    def recording(fd):
        fsync(fd)
        synced.add(Path(os.readlink(f"/proc/self/fd/{fd}")))

    def renaming(source, target):
        events.append({source, *source.rglob("*")} - synced)
        put_in_place(source, target)
        synced.clear()

    monkeypatch.setattr(os, "fsync", recording)
    monkeypatch.setattr(folder_module, "_put_in_place", renaming)
    write_fake(path)
    assert events == [set()], "not on the disk when the name was given"
    assert tmp_path in synced, "the name itself is on the disk"


def test_what_is_finished_early_is_in_the_manifest(tmp_path):
    path, expected = tmp_path / "a.ingot", tmp_path / "b.ingot"
    write_fake(expected)
    with ArtifactWriter(path) as writer:
        for name, data in SAMPLE.items():
            writer.write(name, data)
            writer.finish(name)
        writer.write("golden/n", b"0")
        files = writer.commit(make_manifest()).files
    assert sorted(files) == sorted([*SAMPLE, "golden/n"])
    for name, entry in files.items():
        data = (path / name).read_bytes()
        assert (entry.size, entry.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert Artifact.open(path, "full").names("golden") == ["golden/n"]


def test_a_file_is_hashed_while_it_grows(tmp_path, monkeypatch):
    path, seen = tmp_path / "a.ingot", Event()
    pread = os.pread

    def reading(fd, count, offset):
        data = pread(fd, count, offset)
        if data == b"first":
            seen.set()
        return data

    monkeypatch.setattr(os, "pread", reading)
    with ArtifactWriter(path) as writer:
        for name, data in SAMPLE.items():
            writer.write(name, data)
        with writer.growing("golden/n") as growing, growing.open("wb", buffering=0) as file:
            file.write(b"first")
            assert seen.wait(60), "read before the file is complete"
            file.write(b"last")
        files = writer.commit(make_manifest()).files
    entry = files["golden/n"]
    assert (entry.size, entry.sha256) == (9, hashlib.sha256(b"firstlast").hexdigest())
    assert Artifact.open(path, "full").read("golden/n") == b"firstlast"


def test_a_file_that_fails_to_grow_leaves_nothing(tmp_path):
    def write():
        with ArtifactWriter(tmp_path / "a.ingot") as writer, writer.growing("golden/n") as path:
            path.write_bytes(b"half")
            raise PermissionError(errno.EACCES, "no")

    with pytest.raises(PermissionError):
        write()
    assert names_in(tmp_path) == []


def test_the_check_need_not_wait_for_the_disk_but_the_name_does(tmp_path, monkeypatch):
    """The manifest is complete while a file is still on its way to the disk."""
    path, checked = tmp_path / "a.ingot", Event()
    fsync, events = os.fsync, []

    def slow(fd):
        assert checked.wait(60)
        fsync(fd)
        events.append("disk")

    def renaming(source, target):
        events.append("name")
        put_in_place(source, target)

    put_in_place = folder_module._put_in_place
    monkeypatch.setattr(os, "fsync", slow)
    monkeypatch.setattr(folder_module, "_put_in_place", renaming)
    with ArtifactWriter(path) as writer:
        for name, data in SAMPLE.items():
            writer.write(name, data)
        writer.seal(make_manifest())
        Artifact.open(writer.directory, "full", unfinished=True)
        assert events == []
        checked.set()
        writer.publish()
    in_folder = [path, *path.rglob("*")]
    assert events == ["disk"] * len(in_folder) + ["name", "disk"]


@pytest.mark.parametrize("ending", ["seals", "fails"])
def test_a_file_that_cannot_be_finished_leaves_nothing(tmp_path, monkeypatch, ending):
    """The disk may refuse what it had taken; nobody waits for it where the writer fails anyway."""
    failed = Event()

    def refusing(fd):
        failed.set()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", refusing)

    def write():
        with ArtifactWriter(tmp_path / "a.ingot") as writer:
            writer.write("golden/n", b"0")
            writer.finish("golden/n")
            assert failed.wait(60)
            if ending == "fails":
                raise PermissionError(errno.EACCES, "no")
            writer.commit(make_manifest())

    with pytest.raises(ResourceError if ending == "seals" else PermissionError):
        write()
    assert names_in(tmp_path) == []


def test_nobody_waits_for_the_hash_of_what_is_given_up(tmp_path, monkeypatch):
    """Weights of a file that is never at its end, or their hash takes as long as it likes."""
    reads, begun = [], Event()

    def endless(fd, count, offset):
        reads.append(offset)
        begun.set()
        return b"x" if len(reads) < 100_000 else b""

    def write():
        with ArtifactWriter(tmp_path / "a.ingot") as writer:
            writer.write("golden/n", b"0")
            monkeypatch.setattr(os, "pread", endless)
            writer.finish("golden/n")
            assert begun.wait(60)
            raise PermissionError(errno.EACCES, "no")

    with pytest.raises(PermissionError):
        write()
    assert len(reads) < 100_000 and names_in(tmp_path) == []


def test_a_second_interrupt_leaves_nothing_either(tmp_path, monkeypatch):
    def interrupted(pool, **given):
        raise KeyboardInterrupt

    def write():
        with ArtifactWriter(tmp_path / "a.ingot") as writer:
            writer.write("golden/n", b"0")
            raise KeyboardInterrupt

    monkeypatch.setattr(ThreadPoolExecutor, "shutdown", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write()
    assert names_in(tmp_path) == []


def test_other_errors_keep_their_type(tmp_path):
    with pytest.raises(PermissionError), ArtifactWriter(tmp_path / "a.ingot"):
        raise PermissionError(errno.EACCES, "no")


KILLED = """
import os, signal, sys
sys.path.insert(0, {root!r})
import ingot.artifact.folder as w
from tests.runtime.fake_model import write_fake

count = 0
def dying(function):
    def wrapper(*args, **kwargs):
        global count
        count += 1
        if count == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)
    return wrapper

for name in ("fsync", "fchmod", "mkdir", "rename", "rmdir", "unlink"):
    setattr(os, name, dying(getattr(os, name)))
w._exchange = dying(w._exchange)
write_fake(__import__("pathlib").Path(sys.argv[1]), files={{"golden/x": b"new"}})
print(count)
"""


def run_killed(path: Path, at: int) -> subprocess.CompletedProcess:
    code = KILLED.format(root=str(ROOT))
    command = [sys.executable, "-c", code, str(path), str(at)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


@pytest.mark.cases(thorough=1)
@pytest.mark.parametrize("existing", core(further=[True, False]))
def test_a_killed_writer_leaves_the_old_artifact_or_none(tmp_path, existing):
    path = tmp_path / "a.ingot"
    if existing:
        write_fake(path)
    total = int(run_killed(tmp_path / "b.ingot", 10**6).stdout)
    old, new = {"golden/golden.json"}, {"golden/golden.json", "golden/x"}
    for at in (1, total // 2, *range(total - 4, total + 1)):
        assert run_killed(path, at).returncode == -signal.SIGKILL
        if existing or path.exists():
            assert set(Artifact.open(path, "full").names("golden")) in (old, new)
        for name in names_in(tmp_path):
            if name not in ("a.ingot", "b.ingot", ".a.ingot.lock"):
                with pytest.raises(ArtifactError):
                    Artifact.open(tmp_path / name)
    write_fake(path)
    assert names_in(tmp_path) == ["a.ingot", "b.ingot"]


def test_only_the_same_artifacts_leftovers_are_removed(tmp_path):
    for name in (".a.ingot.tmp-1-ab", ".a.ingot2.tmp-1-ab", ".[ab].tmp-1-ab"):
        (tmp_path / name).mkdir()
    write_fake(tmp_path / "a.ingot")
    write_fake(tmp_path / "[ab]")
    assert names_in(tmp_path) == [".a.ingot2.tmp-1-ab", "[ab]", "a.ingot"]


def test_writers_of_the_same_artifact_take_turns(tmp_path):
    path = tmp_path / "a.ingot"
    waited = []
    with ThreadPoolExecutor(4) as pool:
        jobs = []
        for index in range(8):
            jobs.append(pool.submit(write_numbered, path, index, waited))
        assert sorted(job.result() for job in jobs) == list(range(8))
    assert Artifact.open(path, "full").names("golden") == ["golden/n"]
    assert waited
    assert names_in(tmp_path) == ["a.ingot"]


def test_what_another_writer_has_put_there_meanwhile_is_refused_unless_it_may_be_replaced(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.ingot"
    waits = Event()

    def second() -> None:
        with ArtifactWriter(path, replace=False, on_wait=waits.set):
            pytest.fail("it would write")

    with ThreadPoolExecutor(1) as pool:
        with ArtifactWriter(path, replace=False) as first:
            job = pool.submit(second)
            waits.wait()
            for name, data in SAMPLE.items():
                first.write(name, data)
            first.commit(make_manifest())
        with pytest.raises(UsageError, match=r"a\.ingot exists") as info:
            job.result()
    assert "--force" in info.value.hint
    Artifact.open(path, "full")
    assert names_in(tmp_path) == ["a.ingot"]


def write_numbered(path: Path, index: int, waited: list[int]) -> int:
    from tests.runtime.fake_model import KERNELS, PLAN, WEIGHTS

    with ArtifactWriter(path, on_wait=lambda: waited.append(index)) as writer:
        for name in (KERNELS, PLAN, WEIGHTS):
            writer.write(name, SAMPLE[name])
        writer.write("golden/n", str(index).encode())
        writer.commit(make_manifest())
    return index


def sample_files() -> dict[str, bytes]:
    from tests.runtime.fake_model import KERNELS, PLAN, WEIGHTS, encode_plan, make_plan, weights

    return {KERNELS: b"x", PLAN: encode_plan(make_plan()), WEIGHTS: weights()}


SAMPLE = sample_files()


def test_a_lock_is_free_again_when_its_holder_was_killed(tmp_path):
    lock = tmp_path / "lock"
    code = (
        "import os,sys; sys.path.insert(0, sys.argv[1])\n"
        "from ingot.artifact.lock import file_lock; from pathlib import Path\n"
        "with file_lock(Path(sys.argv[2])): print('held', flush=True); sys.stdin.read()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(ROOT), str(lock)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with child:
        assert child.stdout.readline() == b"held\n"
        waited = []

        def kill():
            waited.append(1)
            child.kill()

        with file_lock(lock, on_wait=kill):
            assert waited
    assert not lock.exists()


def test_hashes_are_sha256(tmp_path):
    paths = []
    for size in (0, 1, (1 << 20) - 1, 1 << 20, (1 << 21) + 3):
        paths.append(tmp_path / str(size))
        paths[-1].write_bytes(os.urandom(size))
    expected = [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
    assert list(map(hash_file, paths)) == expected
