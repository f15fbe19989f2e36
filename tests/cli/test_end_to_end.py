"""The command as users run it: real processes, the bundled model, exit codes, signals, pipes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ingot.artifact.reader import Artifact
from ingot.runtime.tokenizer_files import TokenizerFiles
from tests.support.made_once import cache_folder
from tests.support.terminal import Terminal

INGOT = (sys.executable, "-m", "ingot")


def ingot(*arguments, **options) -> subprocess.CompletedProcess[str]:
    """Runs the command to its end."""
    command = [*INGOT, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **options)


def start(*arguments, **options) -> subprocess.Popen:
    """The command as a process that can be interrupted: a shell starts its background jobs, and
    so perhaps these tests, with SIGINT ignored, and children inherit that."""
    return subprocess.Popen(
        [*INGOT, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **options,
    )


@pytest.mark.thorough
def test_compile_prints_one_json_document_and_a_line_a_stage(shakespeare_dir, tmp_path):
    out = tmp_path / "a.ingot"
    done = ingot("compile", shakespeare_dir, "-o", out, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["golden_error"] <= report["manifest"]["numerics"]["tolerance"]
    assert all(
        entry["matched"] >= (entry["expected"] or 0) for entry in report["manifest"]["ledger"]
    )
    stages = [line.split()[0] for line in done.stderr.splitlines()]
    assert stages == list(report["stage_seconds"])


@pytest.mark.slow
def test_compile_interrupted_leaves_nothing(shakespeare_dir, tmp_path):
    compiler = tmp_path / "c++"
    hangs = 'case "$*" in *step.cpp*) exec tail -f /dev/null;; esac'
    compiler.write_text(f'#!/bin/sh\n{hangs}\nexec g++ "$@"\n')
    compiler.chmod(0o755)
    environment = {
        **os.environ,
        "INGOT_CXX": str(compiler),
        "INGOT_CACHE": str(cache_folder(tmp_path / "cache")),
    }
    out = tmp_path / "out" / "x.ingot"
    process = start("compile", str(shakespeare_dir), "-o", str(out), text=True, env=environment)
    while not process.stderr.readline().startswith("build"):
        assert process.poll() is None, "it ended before it was built"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert not [path for path in out.parent.iterdir() if path.is_dir()]


def test_a_model_directory_is_compiled_once(shakespeare_dir, tmp_path):
    environment = {**os.environ, "INGOT_CACHE": str(cache_folder(tmp_path / "cache"))}
    runs = [
        ingot(
            "run",
            shakespeare_dir,
            "ROMEO:",
            "--raw",
            "--max-tokens",
            8,
            "--seed",
            1,
            env=environment,
        )
        for _ in range(2)
    ]
    assert [run.returncode for run in runs] == [0, 0], runs[0].stderr
    assert runs[0].stdout == runs[1].stdout
    assert "compiling" in runs[0].stderr
    assert runs[1].stderr == ""


@pytest.mark.thorough
def test_a_prompt_from_a_pipe_gives_the_same_as_an_argument(shakespeare_artifact):
    given = ingot("run", shakespeare_artifact, "ROMEO:", "--max-tokens", 8, "--temperature", 0)
    piped = ingot(
        "run", shakespeare_artifact, "--max-tokens", 8, "--temperature", 0, input="ROMEO:\n"
    )
    assert (given.returncode, piped.returncode) == (0, 0), given.stderr + piped.stderr
    assert given.stdout == piped.stdout != ""


def test_a_prompt_is_rendered_by_the_template_of_choice(shakespeare_artifact, tmp_path):
    own = tmp_path / "own.jinja"
    own.write_text("{{ messages[-1].content }}, said {{ messages[-1].role }}")
    tokenizer = TokenizerFiles(Artifact.open(shakespeare_artifact)).tokenizer
    asked = {
        (): "<|endoftext|>First Citizen:\nWhat news?\n\nSecond Citizen:\n",
        ("--chat-template", own): "What news?, said user",
        ("--raw",): "What news?",
    }
    for options, prompt in asked.items():
        done = ingot(
            "run", shakespeare_artifact, "What news?", *options, "--max-tokens", 2, "--json"
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["prompt_token_ids"] == tokenizer.encode(prompt)


@pytest.mark.cases(core=1)
@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_a_prompt_that_is_not_utf8_is_a_usage_error(shakespeare_artifact, errors):
    environment = {**os.environ, "PYTHONIOENCODING": f"utf-8:{errors}"}
    command = [*INGOT, "run", shakespeare_artifact]
    given = subprocess.run([*command, b"a\xff"], capture_output=True, timeout=60)
    piped = subprocess.run(
        command, input=b"a\xff", capture_output=True, timeout=60, env=environment
    )
    assert (given.returncode, piped.returncode) == (2, 2), given.stderr + piped.stderr
    assert given.stderr == piped.stderr
    assert b"error: the text is not valid UTF-8: character 1" in piped.stderr


def test_text_is_streamed_and_ctrl_c_ends_it(shakespeare_artifact):
    process = start("run", str(shakespeare_artifact), "ROMEO:", "--max-tokens", "900")
    first = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=60)
    assert first
    assert process.returncode == 130, (rest, errors)
    assert errors.decode().split() == ["interrupted"]


def test_a_conversation_on_a_terminal(shakespeare_artifact, tmp_path):
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "TERM": "dumb"}
    command = [*INGOT, "run", str(shakespeare_artifact), "--temperature", "0"]
    with Terminal([*command, "--max-tokens", "900"], environment) as chat:
        chat.until("> ")
        chat.type("What news?\r")
        chat.until("What news?\r\n")
        chat.until("\r\n")  # the first line of the answer
        chat.type("\x03")  # Ctrl-C at once: a model that computes is not seen to wait
        chat.until("(Ctrl-C again leaves")
        chat.until("> ")
        chat.type("/set max-tokens 8\r")
        chat.until("> ")
        chat.type(f"{'a ' * 1300}\r")
        chat.until("error: the context is full")
        chat.type("/clear\r")
        chat.until("(Forgotten.)")
        chat.type("What news?\r")
        chat.until("(Cut after 8 tokens; see /set max-tokens.)")
        chat.type("/stats\r/bye\r")
        code, rest = chat.end()
    assert code == 0, rest
    assert "of 1024 tokens" in rest


def test_a_reader_that_leaves_early_is_no_error(shakespeare_artifact):
    line = f"{sys.executable} -m ingot inspect {shakespeare_artifact} --plan | head -c 10"
    command = ["bash", "-o", "pipefail", "-c", line]
    done = subprocess.run(command, capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")


def test_verify_passes_and_finds_a_flipped_bit(shakespeare_artifact, tmp_path):
    done = ingot("verify", shakespeare_artifact, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["bitwise_equal"] is True

    copy = tmp_path / "damaged.ingot"
    shutil.copytree(shakespeare_artifact, copy)
    (weights,) = (copy / "weights").iterdir()
    data = bytearray(weights.read_bytes())
    data[-1000] ^= 0x40
    weights.write_bytes(data)
    done = ingot("verify", copy)
    assert done.returncode == 3
    assert weights.name in done.stderr


@pytest.mark.cases(core=3)
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--help",), 0),
        (("run",), 2),
        (("run", "no-such.ingot", "x"), 3),
        (("inspect", "."), 3),
        (("explain", "no-such-model"), 2),
        (("compile", "no-such-model"), 2),
        (("compile", ".", "--target", "cuda:sm_90"), 2),
    ],
)
def test_exit_codes(tmp_path, arguments, code):
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = ingot(*arguments, cwd=tmp_path, env=environment)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


INTERRUPTED_IN_C = """
import ctypes, sys
from ingot.cli import main

def run(argv):
    run_string, names = ctypes.pythonapi.PyRun_String, ctypes.py_object({})
    run_string.restype = ctypes.py_object
    run_string(b"raise KeyboardInterrupt", FILE_INPUT, names, names)

FILE_INPUT = 257  # of Python's C interface
main._run = run
sys.exit(main.main([]))
"""


def test_an_interrupt_within_code_that_c_runs_has_the_same_exit_code(tmp_path):
    """`python -m` would otherwise end by a signal, since it takes the interrupt for unhandled."""
    (tmp_path / "interrupted.py").write_text(INTERRUPTED_IN_C)
    command = [sys.executable, "-m", "interrupted"]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (130, "\ninterrupted\n")
