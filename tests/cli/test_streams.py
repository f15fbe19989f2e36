"""The command where its standard streams are closed, full, or read by nobody."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.cli.sample_artifact import write_sample

FAILS_WITH_A_RESULT = """
import sys
from ingot.cli.inspect import inspect
from ingot.cli.main import main
from ingot.cli.output import print_json
def fails(args):
    print_json({"passed": False})
    return 4
inspect.main = fails
sys.exit(main(["inspect", "x.ingot"]))
"""
COMPILES_NOTHING = """
import sys
import ingot.cli.compile, ingot.compiling
from ingot.cli.main import main
ingot.cli.compile.summary = str
def compile_checked(model_dir, out, options, progress, **_):
    progress("read", "config.json", None)
    progress("pack", "embed", 0.5)
    out.mkdir()
    return out
ingot.compiling.compile_checked = compile_checked
sys.exit(main(["compile", "m", "-o", sys.argv[1]]))
"""


def ingot(
    *arguments, closed=None, program=("-m", "ingot"), **streams
) -> subprocess.CompletedProcess:
    """Runs the command to its end; one of its standard streams may be closed."""
    command = [sys.executable, *program, *map(str, arguments)]
    close = None if closed is None else lambda: os.close(closed)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    return subprocess.run(command, preexec_fn=close, text=True, timeout=60, **streams)


@pytest.fixture
def unread():
    """The writing end of a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.fixture
def full():
    """A file on a disk that is full."""
    with open("/dev/full", "w") as file:
        yield file


@pytest.fixture
def sample(tmp_path):
    return write_sample(tmp_path / "sample.ingot")


@pytest.fixture
def damaged(sample):
    """The sample with a bit flipped."""
    weights = sample / "weights" / "cpu-float32.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    return sample


def test_messages_that_nobody_reads_do_not_stop_the_work(unread, tmp_path):
    out = tmp_path / "x.ingot"
    done = ingot(out, program=("-c", COMPILES_NOTHING), stderr=unread)
    assert (done.returncode, done.stdout) == (0, f"{out}\n")
    assert out.is_dir()


@pytest.mark.cases(core=1)
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_an_error_that_nobody_reads_has_its_exit_code(damaged, unread, options):
    assert ingot("verify", damaged, *options, stderr=unread).returncode == 3
    done = ingot("verify", damaged, *options, stdout=unread)
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.cases(core=1)
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("explain", "no-such-model", "--json"), 2),
        (("run", "no-such-model", "hi", "--json"), 3),
        (("--version",), 0),
        (("--help",), 0),
    ],
)
def test_a_result_that_nobody_reads_is_no_error(unread, arguments, code):
    done = ingot(*arguments, stdout=unread)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_a_result_that_nobody_reads_keeps_its_exit_code(unread):
    done = ingot(program=("-c", FAILS_WITH_A_RESULT), stdout=unread)
    assert (done.returncode, done.stderr) == (4, "")


@pytest.mark.cases(core=1)
@pytest.mark.parametrize("options", [(), ("--json",), ("--plan",)])
def test_a_result_for_which_there_is_no_space_is_an_error(sample, full, options):
    done = ingot("inspect", sample, *options, stdout=full)
    assert (done.returncode, done.stderr) == (5, "error: no space left: disk full\n")


def test_a_version_for_which_there_is_no_space_is_an_error(full):
    done = ingot("--version", stdout=full)
    assert (done.returncode, done.stderr) == (5, "error: no space left: disk full\n")


@pytest.mark.cases(core=1)
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_closed_streams(sample, options):
    done = ingot("inspect", sample, *options, closed=1)
    assert (done.returncode, done.stderr) == (0, "")
    done = ingot("inspect", sample, *options, closed=2)
    assert done.returncode == 0
    assert "sample" in done.stdout


@pytest.mark.thorough
def test_closed_streams_of_errors(damaged):
    assert ingot("verify", damaged, closed=2).returncode == 3
    done = ingot("verify", damaged, "--json", closed=2)
    assert json.loads(done.stdout)["error"]["exit_code"] == done.returncode == 3


def test_a_closed_stdin_is_an_empty_one(sample):
    done = ingot("run", sample, closed=0)
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "error: the prompt is empty")


@pytest.mark.cases(core=1)
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_conversation_ends_when_nobody_reads_the_answers(sample, unread, options):
    arguments = ("run", sample, "--chat", *options)
    says = "nothing\n" * 3  # each of which would be told to be taken back
    done = ingot(*arguments, program=("-m", "tests.cli.fake_llm"), input=says, stdout=unread)
    assert (done.returncode, done.stderr) == (0, "")
