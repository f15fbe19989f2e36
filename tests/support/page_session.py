"""Runs the blocks of a page, as a reader would: one after the other, in one folder.

The folder has what pages speak of: the bundled model by its usual names, the examples, and an
artifact of every name that no command of the page writes. Names on the hub lead to a hub on this
machine. In what a console shows, a line of `...` stands for any lines, and `...` in a line for any
text. Numbers and targets differ between machines, so any number stands for any other. After
a command with the comment `# for example` the page shows what it may print.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import ingot
from examples.tiny_model import CONFIG, write_model
from tests.support.hub import serve_hub
from tests.support.made_once import cache_folder, made_once
from tests.support.page_blocks import ROOT, Block
from tests.support.terminal import Terminal

BUNDLED = ROOT / "golden" / "models" / "shakespeare"
LONGEST = 8192
HUB_NAME, REVISIONS = "Qwen/Qwen3-0.6B", ("main", "v1.0")
# What pages call a model directory of the reader's.
MODEL_DIRS = ("MODEL_DIR", "model_dir", "Qwen3-0.6B")
HELIUM = {**CONFIG, "architectures": ["HeliumForCausalLM"], "model_type": "helium"}
ARTIFACT = re.compile(r"[\w.-]+\.ingot\b")
WRITTEN = re.compile(r"(?:-o +|rm +|, \"|ArtifactWriter\(\")([\w.-]+\.ingot)\b")
TARGET = re.compile(r"cpu[:-](native|portable|x86-64-v\d(\+\w+)*)|cuda[:-](native|sm_\d+)")
EXAMPLE = "# for example"
PROGRAM = f'#!/bin/sh\nexec "{sys.executable}" {{}} "$@"\n'
# Runs a block of Python; `await` and `async with` need no function around them.
PYTHON = """
import ast, asyncio, inspect, sys
path = sys.argv[1]
code = compile(open(path).read(), path, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
names = {"__name__": "__main__", "__file__": path}
result = eval(code, names)
if inspect.iscoroutine(result):
    asyncio.run(result)
"""


class Session:
    """The folder and the environment of a page; `run` runs its blocks in order."""

    def __init__(self, folder: Path, hub: str = "", *, own_cache: bool = False) -> None:
        self.folder = folder
        programs = folder / ".venv" / "bin"
        programs.mkdir(parents=True)
        for name, arguments in {"ingot": "-m ingot", "python": "", "pip": "-m pip"}.items():
            (programs / name).write_text(PROGRAM.format(arguments))
            (programs / name).chmod(0o755)
        (folder / "stdin.txt").write_text("The king\n")
        shutil.copyfile(ROOT / "docs" / "glossary.md", folder / "text.txt")
        cache = folder / "cache"
        # Tests run Triton's interpreter; who reads the page has its compiler.
        usual = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        self.environment = {
            **usual,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(folder))),
            "HOME": str(folder),
            "INGOT_CACHE": str(cache if own_cache else cache_folder(cache)),
            "HF_ENDPOINT": hub,
            "HF_HOME": str(folder / "hub"),
            "NO_PROXY": "127.0.0.1,127.0.0.2",
            "OMP_NUM_THREADS": "1",
        }

    def run(self, block: Block) -> None:
        """Runs a block. Raises AssertionError where it fails, or prints other than the page."""
        if block.language == "python":
            self._run_python(block)
        elif block.language == "bash":
            done = self._bash(f"set -euo pipefail\n{block.text}")
            assert done.returncode == 0, f"{block.place} fails:\n{done.stdout}{done.stderr}"
        else:
            for command, shown in steps(block.text):
                self._run_shown(block, command, shown)

    def _run_python(self, block: Block) -> None:
        named = re.match(r"# (\w+\.py)\n", block.text)
        path = self.folder / (named[1] if named else f"block_{block.line}.py")
        path.write_text(block.text)
        command = [sys.executable, "-c", PYTHON, str(path)]
        done = self._start(command, self.environment)
        assert done.returncode == 0, f"{block.place} fails:\n{done.stdout}{done.stderr}"

    def _run_shown(self, block: Block, command: str, shown: list[str]) -> None:
        if any(line.startswith("> ") for line in shown):
            return self._converse(block, command, [x[2:] for x in shown if x.startswith("> ")])
        done = self._bash(f"set -euo pipefail\n{command}")
        printed = done.stderr if "fails" in block.words else done.stdout
        failed = done.returncode != 0
        assert failed == ("fails" in block.words), (
            f"{block.place}: `{command}` ends with {done.returncode}:\n{done.stdout}{done.stderr}"
        )
        if EXAMPLE not in command:
            assert matches(shown, printed), f"{block.place}: `{command}` prints:\n{printed}"

    def _converse(self, block: Block, command: str, typed: list[str]) -> None:
        words = ["bash", "-c", f"cd {self.folder} && exec {command}"]
        with Terminal(words, {**self.environment, "TERM": "xterm"}) as terminal:
            for line in typed:
                terminal.until("> ")
                terminal.type(f"{line}\r")
                terminal.until(f"{line}\r\n")
            code, rest = terminal.end()
        assert code == 0, f"{block.place}: the conversation ends with {code}:\n{rest}"

    def _bash(self, text: str) -> subprocess.CompletedProcess[str]:
        return self._start(["bash", "-c", text], self.environment)

    def _start(
        self, command: list[str], environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        with (self.folder / "stdin.txt").open() as stdin:
            return subprocess.run(
                command,
                stdin=stdin,
                capture_output=True,
                text=True,
                cwd=self.folder,
                env=environment,
            )


def steps(text: str) -> Iterator[tuple[str, list[str]]]:
    """(command, lines that it prints) of a console, where commands begin with `$ `."""
    for part in re.split(r"^\$ ", re.sub(r"\\\n *", " ", text), flags=re.M)[1:]:
        command, *shown = part.rstrip("\n").split("\n")
        yield command, shown


def matches(shown: list[str], printed: str) -> bool:
    """Whether a page shows what was printed."""
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == "..." else _line(line) + r" *\n" for line in shown
    )
    printed = _same_everywhere(printed.rstrip("\n") + "\n") if printed.strip() else ""
    return re.fullmatch(pattern, printed) is not None


def _line(line: str) -> str:
    parts = _same_everywhere(line.rstrip()).split("...")
    return ".*".join(map(re.escape, parts))


def _same_everywhere(text: str) -> str:
    """The text without what differs between machines: targets, numbers, and the room for them."""
    text = TARGET.sub("TARGET", text)
    text = re.sub(r"-?\d+(\.\d+)?(e[+-]\d+)?", "#", text)
    return re.sub(r" *\b(MB|KB|GB|kB)\b", " bytes", re.sub(r"  +", "  ", text))


@contextmanager
def session_of(blocks: list[Block], folder: Path) -> Iterator[Session]:
    """A session that has all names that these blocks speak of."""
    text = re.sub(r"(^|\s)#.*", "", "".join(block.text for block in blocks))
    model = made_once("page_model", write_bundled)
    if "golden/models" in text:
        (folder / "golden" / "models").mkdir(parents=True)
        (folder / "golden" / "models" / "shakespeare").symlink_to(BUNDLED)
    if "examples/" in text:
        skipped = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "examples", folder / "examples", ignore=skipped)
    for name in MODEL_DIRS:
        if name in text:
            (folder / name).symlink_to(model / "model")
    if "helium-1-2b" in text:
        write_model(folder / "helium-1-2b", HELIUM)
    for name in unwritten(text):
        compiled = made_once(
            "page_artifact", lambda place: ingot.compile(model / "model", place / "model.ingot")
        )
        shutil.copytree(compiled / "model.ingot", folder / name)
    with serve_hub() as hub:
        hub.add(HUB_NAME, model / "model", revisions=REVISIONS)
        # A page that removes what is cached removes none of the object files that tests share.
        yield Session(folder, hub.url, own_cache="ingot cache" in text)


def unwritten(text: str) -> list[str]:
    """The artifacts that the commands of a page take, without those that they write before."""
    taken = set()
    for name in {*ARTIFACT.findall(text)}:
        first, written = text.index(name), WRITTEN.search(text)
        while written and written[1] != name:
            written = WRITTEN.search(text, written.end())
        if written is None or first < written.start(1):
            taken.add(name)
    return sorted(taken)


def write_bundled(place: Path) -> None:
    """The bundled model, with as long a context as pages ask for."""
    shutil.copytree(BUNDLED, place / "model")
    config = json.loads((BUNDLED / "config.json").read_text())
    longer = json.dumps({**config, "max_position_embeddings": LONGEST})
    (place / "model" / "config.json").write_text(longer)
