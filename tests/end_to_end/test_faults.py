"""Compiles that are killed, that run out of disk, or that run twice at once."""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ingot.artifact.reader import Artifact
from ingot.cli.main import main
from ingot.compiler import compile as compiler
from ingot.compiler.options import CompileOptions
from ingot.errors import PassError
from ingot.models.model_dir import ModelDir
from ingot.targets.cpu.toolchain import find_compiler
from tests.support.core import core
from tests.support.tiny_models import save_random

OPTIONS = ("--target", "cpu:portable", "--max-model-len", "64")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random("llama", tmp_path_factory.mktemp("model") / "model", tokenizer=True)


def start(model: Path, out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ingot", "compile", str(model), "-o", str(out), *OPTIONS]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


@pytest.mark.cases(thorough=1)
@pytest.mark.parametrize("stage", core("golden", further=["generate", "write"]))
def test_a_killed_compile_leaves_no_artifact(stage: str, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "model.ingot"
    process = start(model, out)
    assert process.stderr is not None
    reached = any(line.startswith(stage) for line in process.stderr)
    process.kill()
    process.wait()
    process.stderr.close()
    assert reached
    assert process.returncode == -signal.SIGKILL
    assert not out.exists()
    # A rerun works without cleaning up by hand, and removes what the dead one left.
    assert main(["compile", str(model), "-o", str(out), *OPTIONS]) == 0
    Artifact.open(out, "full")
    assert not list(tmp_path.glob(".*.tmp-*"))


def test_a_failed_compile_closes_the_checkpoint(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, and not when the error and its traceback are gone."""
    mapped = Path("/proc/self/maps")
    seen = []

    def fail(*_: object) -> None:
        seen.append(str(model) in mapped.read_text())
        raise PassError("idle", "matched too seldom")

    monkeypatch.setattr(compiler, "front_of", fail)
    options = CompileOptions(targets=("cpu:portable",), max_model_len=64)
    with pytest.raises(PassError) as caught:
        compiler.compile_model(ModelDir.open(model), tmp_path / "model.ingot", options)
    assert seen == [True]
    assert str(model) not in mapped.read_text()
    assert caught.tb is not None  # it is held up to here


# Starts a process of its own, as g++ does, that holds a pipe open as long as it lives; but only for
# that source.
SLOW_COMPILER = r"""#!/bin/sh
case "$*" in *--version) exit 0;; *{source}\ *) ;; *) exit 0;; esac
exec 3>{pipe}
tail -f /dev/null > /dev/null 2>&1 &
echo started >&3
wait
"""


@pytest.mark.cases(core=1, thorough=1)
@pytest.mark.parametrize(
    ("number", "code"),
    core((signal.SIGTERM, 143), further=[(signal.SIGHUP, 129), (signal.SIGINT, 130)]),
)
@pytest.mark.parametrize(
    "source", ["/ingot-prepare-*/interface.cpp", "/.model.ingot.tmp-*/step.cpp"]
)
def test_a_compile_that_is_told_to_end_takes_its_compiler_with_it(
    source: str,
    number: int,
    code: int,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before PyTorch is imported, and while the kernels are built."""
    pipe, compiler, out = tmp_path / "pipe", tmp_path / "c++", tmp_path / "out" / "model.ingot"
    os.mkfifo(pipe)
    out.parent.mkdir()
    compiler.write_text(SLOW_COMPILER.format(pipe=pipe, source=source))
    compiler.chmod(0o755)
    monkeypatch.setenv("INGOT_CXX", str(compiler))
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # without waiting for a writer
    process = start(model, out)
    with os.fdopen(reader) as held:
        ended = os.pidfd_open(process.pid)
        ready, _, _ = select.select([reader, ended], [], [])
        os.close(ended)
        assert reader in ready, process.communicate()
        os.set_blocking(reader, True)
        assert held.readline() == "started\n"
        process.send_signal(number)
        _, error = process.communicate()
        assert held.read() == "", "the end comes when nobody holds the pipe any more"
    assert process.returncode == code
    assert "Traceback" not in error
    assert list(out.parent.iterdir()) == []


@pytest.mark.thorough
def test_two_compiles_at_once_do_not_clash(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "model.ingot"
    processes = [start(model, out) for _ in range(2)]
    outcomes = []
    for process in processes:
        _, error = process.communicate()
        outcomes.append((process.returncode, error))
    # The second either waited and replaced it, or saw that it exists and refused.
    assert 0 in [code for code, _ in outcomes]
    failed = [(code, error) for code, error in outcomes if code]
    assert all(code == 2 and "exists" in error for code, error in failed), failed
    Artifact.open(out, "full")
    assert not list(tmp_path.glob(".*.tmp-*"))


@pytest.mark.parametrize("part", ["add_weights", "add_golden", "write_tokenizer", "add_kernels"])
def test_a_full_disk_is_said_and_nothing_remains(
    part: str,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "weights")

    monkeypatch.setattr(compiler, part, full)
    out = tmp_path / "model.ingot"
    assert main(["compile", str(model), "-o", str(out), *OPTIONS]) == 5
    assert "No space left on device" in capsys.readouterr().err
    assert not out.exists()
    assert not list(tmp_path.glob(".*.tmp-*"))


# A clock that is a year and a quarter ahead, for a program and all that it starts.
AHEAD = """
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
extern "C" int clock_gettime(clockid_t id, timespec *t) noexcept {
  const long failed = syscall(SYS_clock_gettime, id, t);
  if (!failed && id == CLOCK_REALTIME) t->tv_sec += 40'000'000;
  return failed;
}
extern "C" time_t time(time_t *t) noexcept {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return t ? *t = now.tv_sec : now.tv_sec;
}
extern "C" int gettimeofday(timeval *t, void *) noexcept {
  t->tv_sec = time(nullptr), t->tv_usec = 0;
  return 0;
}
"""


@pytest.fixture(scope="module")
def another_day(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a process has in its environment on another day."""
    folder = tmp_path_factory.mktemp("clock")
    source, library = folder / "ahead.cpp", folder / "ahead.so"
    source.write_text(AHEAD)
    subprocess.run(
        [*find_compiler(), "-shared", "-fPIC", str(source), "-o", str(library)], check=True
    )
    return {"LD_PRELOAD": str(library)}


@pytest.mark.thorough
def test_another_day_is_one(another_day: dict[str, str]) -> None:
    """The control of the test below: Python, and what it starts, see the other day."""
    nested = "import subprocess; print(subprocess.getoutput('date +%s'))"
    done = subprocess.run(
        [sys.executable, "-c", f"import time; print(time.time()); {nested}"],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **another_day},
    )
    assert all(float(said) > time.time() + 30_000_000 for said in done.stdout.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", core(further=["--quantize int4 --group-size 32 --kv-dtype int8"], slow=[""])
)
def test_compiles_with_other_hash_seeds_on_other_days_are_identical(
    options: str,
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    another_day: dict[str, str],
) -> None:
    """In folders and with caches of their own, so that each does all of the work."""
    made = []
    for seed, day in (("1", {}), ("2", another_day)):
        own = {"PYTHONHASHSEED": seed, "INGOT_CACHE": str(tmp_path / f"cache {seed}"), **day}
        out = tmp_path / f"folder {seed}" / "model.ingot"
        words = ["compile", str(model), "-o", str(out), *OPTIONS, *options.split()]
        command = [sys.executable, "-m", "ingot", *words]
        subprocess.run(command, check=True, env={**os.environ, **own})
        made.append(str(out))
    assert main(["compare", *made]) == 0
    out_text = capsys.readouterr().out
    assert "the same, byte for byte" in out_text and "identical" in out_text


def test_compiles_repeat_to_the_byte(model: Path, tmp_path: Path) -> None:
    digests = []
    for folder in ("here", "somewhere/else"):
        out = tmp_path / folder / "model.ingot"
        out.parent.mkdir(parents=True)
        assert main(["compile", str(model), "-o", str(out), *OPTIONS]) == 0
        digests.append(Artifact.open(out).manifest.digest)
    assert digests[0] == digests[1]
