"""`ingot doctor`: on this host, and on hosts that lack something."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from importlib import metadata

import pytest

from ingot.artifact import host
from ingot.artifact.host import host_flags, usable_processors
from ingot.cache.artifacts import entry_name
from ingot.cli import doctor
from ingot.cli.main import main
from ingot.targets.cpu.levels import native_target
from ingot.targets.cuda import triton_package
from ingot.targets.target import requires
from ingot.version import __version__


@pytest.fixture
def report(capsys):
    """What `ingot doctor --json` prints."""

    def run() -> dict:
        assert main(["doctor", "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def remedies(found: dict) -> dict[str, str]:
    return {each["what"]: each["remedy"] for each in found["missing"]}


def test_the_host_as_an_object(report, monkeypatch, tmp_path):
    monkeypatch.setenv("INGOT_CACHE", str(tmp_path / "cache"))
    artifact = tmp_path / "cache" / entry_name("model", "0" * 64)
    artifact.mkdir(parents=True)
    (artifact / "manifest.json").write_text("12345")
    (tmp_path / "cache/other.ingot").mkdir()  # `ingot cache` does not count it either
    found = report()
    native = native_target(host_flags()).name
    assert found["host"]["runs_targets"][0] == found["compiler"]["builds"] == native
    assert found["host"]["runs_targets"][-1] == "cpu:portable"
    assert found["host"]["threads"] == usable_processors()
    assert found["host"]["l2_cache_bytes"] == host.core_cache()
    assert 0 < found["memory"]["available_bytes"] <= found["memory"]["total_bytes"]
    assert found["cache"]["folder"] == str(tmp_path / "cache")
    assert (found["cache"]["artifacts"], found["cache"]["size_bytes"]) == (1, 5)
    assert found["versions"]["numpy"] == metadata.version("numpy")
    assert found["versions"]["ingot"] == __version__


@pytest.mark.thorough
@pytest.mark.parametrize("cache", ["a" * 300, "removed"])
def test_a_cache_that_is_none_or_changes_meanwhile(report, monkeypatch, tmp_path, cache):
    monkeypatch.setenv("INGOT_CACHE", str(tmp_path / cache))
    if cache == "removed":
        (tmp_path / cache).mkdir()
        (tmp_path / cache / "gone").symlink_to("nowhere")
        monkeypatch.setattr(doctor.Path, "is_file", lambda path: True)  # it was there just now
    assert report()["cache"]["size_bytes"] == 0


@pytest.mark.thorough
def test_a_cache_that_cannot_be_read_is_missing(report, monkeypatch, tmp_path):
    monkeypatch.setenv("INGOT_CACHE", str(tmp_path))
    iterdir = doctor.Path.iterdir

    def refused(path):
        if path == tmp_path:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return iterdir(path)

    monkeypatch.setattr(doctor.Path, "iterdir", refused)
    found = report()
    assert found["cache"]["artifacts"] is None and found["cache"]["free_bytes"] > 0
    remedy = remedies(found)["cache"]
    assert f"{tmp_path} cannot be read: Permission denied" in remedy and "INGOT_CACHE" in remedy


def test_the_host_as_text(capsys):
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    for part in (
        "Host\n",
        "cpu:portable",
        "CUDA\n",
        "cpu quota",
        "huge pages",
        "Missing\n",
        __version__,
    ):
        assert part in out
    assert "_bytes" not in out


def test_a_whole_host_lacks_nothing():
    assert doctor.summary({"host": {"threads": 2}}, []).endswith("Missing\n  nothing")


WITHOUT_PACKAGES = """
import sys
from importlib import metadata
def version(name):
    raise metadata.PackageNotFoundError(name)
metadata.version = version
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name in {"torch", "numpy", "rich", "msgspec", "jinja2", "tokenizers", "xxhash"}:
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
from ingot.cli.main import main
from ingot.targets.cuda import triton_package
sys.exit(main(["doctor", "--json"]))
"""


def test_it_works_where_no_package_is_installed():
    done = subprocess.run([sys.executable, "-c", WITHOUT_PACKAGES], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["versions"]["torch"] is None and found["compiler"]["builds"]
    lacks = remedies(found)
    assert "running an artifact does not: pip install 'ingot-lm[compile]'" in lacks["torch"]
    assert lacks["numpy"] == "pip install 'ingot-lm'"
    assert "triton" not in lacks and found["cuda"]["builds"]  # which is found by its files


@pytest.mark.thorough
def test_kernels_for_cuda_can_be_built_with_triton(report):
    found = report()["cuda"]
    levels = ("sm_80", "sm_90", "sm_100", "sm_103", "sm_120")
    assert found["builds"] == [f"cuda:{level}" for level in levels]
    assert found["triton"] == metadata.version("triton")
    assert found["assembler"].startswith("1") and found["lacks"] is None


def test_without_triton_it_says_what_to_install(report, capsys, monkeypatch):
    monkeypatch.setattr(triton_package, "find_spec", lambda name: None)
    found = report()
    assert found["cuda"]["builds"] is found["cuda"]["triton"] is None
    assert "pip install 'ingot-lm[cuda]'" in found["cuda"]["lacks"]
    assert "Triton" not in str(found["missing"])
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "builds     none" in out and "Triton is not installed" in out


def test_a_compiler_that_is_not_there(report, monkeypatch):
    monkeypatch.setenv("INGOT_CXX", "/no/such/g++")
    found = report()
    assert found["compiler"]["command"] is None
    assert "is not a program" in remedies(found)["C++ compiler"]


@pytest.mark.thorough
def test_a_compiler_that_builds_nothing(report, monkeypatch, tmp_path):
    script = tmp_path / "g++"
    script.write_text("#!/bin/sh\necho no headers >&2; exit 1\n")
    script.chmod(0o755)
    monkeypatch.setenv("INGOT_CXX", str(script))
    found = report()
    assert found["compiler"]["builds"] is None
    assert "no headers" in remedies(found)["C++ compiler"]


@pytest.mark.thorough
def test_a_host_without_huge_pages_and_home(report, monkeypatch):
    monkeypatch.setattr(host, "huge_pages", lambda: "never")
    monkeypatch.setenv("INGOT_CACHE", "~nobody-of-that-name/x")
    found = report()
    assert found["memory"]["huge_pages"] == "never" and found["cache"] == {"folder": None}
    assert "echo madvise" in remedies(found)["huge pages"]
    assert "Set INGOT_CACHE" in remedies(found)["cache"]


@pytest.mark.thorough
def test_a_host_that_is_no_x86_64(report, monkeypatch):
    monkeypatch.setattr(host, "host_flags", lambda: frozenset({"aarch64"}))
    found = report()
    assert found["host"]["runs_targets"] == []
    assert "another processor" in remedies(found)["x86-64"]


def test_features_beyond_the_level_are_told(monkeypatch):
    flags = requires(native_target(host_flags())) | {"avx2", "fma", "f16c", "bmi1", "bmi2"}
    monkeypatch.setattr(host, "host_flags", lambda: flags | {"avx_vnni"})
    assert "cpu:x86-64-v3+avx_vnni" in doctor.runnable_targets()
