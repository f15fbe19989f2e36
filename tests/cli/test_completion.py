"""Completion: what the parser offers for a line, and the scripts in the shells that are here."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ingot.cli.completion import SCRIPTS, candidates
from ingot.cli.main import main
from ingot.cli.parser import VERBS, build_parser

ROOT = Path(__file__).resolve().parents[2]
HANGS_SECONDS = 60


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("comp", ["compile", "compare", "completion"]),
        ("--ver", ["--version"]),
        ("explain --j", ["--json"]),
        ("compile m --dtype ", ["auto", "float32", "bfloat16", "float16"]),
        ("compile m --dtype b", ["bfloat16"]),
        ("compile m --dtype=b", ["--dtype=bfloat16"]),
        # as bash cuts --dtype=
        ("compile m --dtype =", ["auto", "float32", "bfloat16", "float16"]),
        ("compile m --dtype = f", ["float32", "float16"]),
        ("compile m --nonsense=b", []),
        ("compile --max-n", ["--max-num-seqs", "--max-num-batched-tokens"]),
        ("compile --force --q", ["--quantize", "--quality-text", "--quality-positions"]),
        ("compile ", []),  # a path
        ("compile --output ", []),
        ("compile m --max-model-len ", []),
        ("run m -- --", []),  # a prompt
        ("completion ", ["bash", "zsh", "fish"]),
        ("bench s", ["serve"]),  # the second word of a verb
        ("bench --op", ["--ops"]),
        ("bench serve --base", ["--base-url"]),
        ("bench serve --backend openai-", ["openai-chat"]),
        ("bench model s", []),
        ("completion z", ["zsh"]),
        ("nonsense --", []),
    ],
)
def test_what_can_follow(line, found):
    offered = candidates(build_parser(), line.split(" "))
    assert [
        each for each in offered if found != [verb.name for verb in VERBS] or each[0] != "-"
    ] == (found)


def test_every_verb_and_option_is_offered():
    parser = build_parser()
    for line in ([""], ["="]):
        assert {verb.name for verb in VERBS} <= set(candidates(parser, line))
    for verb in VERBS:
        assert {"--json", "--debug", "--help"} <= set(candidates(parser, [verb.name, "--"]))


@pytest.mark.parametrize("shell", SCRIPTS)
def test_a_script_says_where_it_belongs_and_asks_the_parser(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert script.startswith("# For ~/.") and f"ingot completion {shell}" in script.split("\n")[0]
    assert f" completion {shell} -- " in script
    assert main(["completion", shell, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"script": script}


def test_the_words_of_a_line_come_after_two_dashes(capsys):
    assert main(["completion", "bash", "--", "run", "m", "--sta"]) == 0
    assert capsys.readouterr().out == "--stats\n"
    assert main(["completion", "bash", "--json", "--", "run", "-"]) == 0
    assert "--stats" in json.loads(capsys.readouterr().out)


def test_an_unknown_shell_is_named(capsys):
    assert main(["completion", "tcsh"]) == 2
    assert "SHELL is 'tcsh'" in capsys.readouterr().err


@pytest.fixture
def shell_environment(tmp_path):
    """An environment of shells in which `ingot` is this ingot."""
    program = tmp_path / "bin" / "ingot"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m ingot "$@"\n')
    program.chmod(0o755)
    paths = {"PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    return {"HOME": str(tmp_path), "TERM": "dumb", "PS1": "$ ", **paths}


def complete_in_bash(environment, *words):
    """What bash offers for a line of these words."""
    program = """
        eval "$(ingot completion bash)"
        COMP_WORDS=(ingot "$@") COMP_CWORD=$#
        _ingot ingot
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    command = ["bash", "--norc", "--noprofile", "-c", program, "bash", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes(shell_environment):
    assert complete_in_bash(shell_environment, "insp") == ["inspect"]
    assert complete_in_bash(shell_environment, "compile", "my model", "--dtype", "=", "b") == [
        "bfloat16"
    ]
    assert complete_in_bash(shell_environment, "run", "") == []


def test_a_tab_in_bash_completes_verbs_and_paths(shell_environment, tmp_path):
    (tmp_path / "only-one.ingot").mkdir()
    environment = {**shell_environment, "PS1": "ready$ "}
    child, terminal = pty.fork()
    if not child:
        os.chdir(tmp_path)
        os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], environment)
    try:
        os.write(terminal, b'eval "$(ingot completion bash)"\n')
        os.write(terminal, b"ingot veri\tonly\t\n")
        seen = b""
        while b"verify only-one.ingot" not in seen:
            assert select.select([terminal], [], [], HANGS_SECONDS)[0], seen
            seen += os.read(terminal, 4096)
    finally:
        os.write(terminal, b"\nexit\n")
        os.close(terminal)
        os.waitpid(child, 0)


ZSH = """
    autoload -Uz compinit && compinit -u
    eval "$(ingot completion zsh)"
    compadd() { shift; print -l -- "$@" }
    words=(ingot compile m --dtype b) CURRENT=5
    _ingot
"""
FISH = "ingot completion fish | source; complete -C 'ingot compile m --dtype b'"


@pytest.mark.parametrize(("shell", "program"), [("zsh", ZSH), ("fish", FISH)])
def test_the_other_shells_complete_where_they_are_installed(shell, program, shell_environment):
    if shutil.which(shell):
        command = [shell, "-c", program]
        done = subprocess.run(command, capture_output=True, text=True, env=shell_environment)
        assert (done.stdout.split(), done.stderr) == (["bfloat16"], "")
    # Their quotes and blocks are closed, as far as bash can tell.
    script = SCRIPTS[shell]
    for opening, closing in ("()", "{}", "[]"):
        assert script.count(opening) == script.count(closing)
    assert script.count("'") % 2 == script.count('"') % 2 == 0
