"""The blocks on serving, run against the server that the first of them starts."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.page_blocks import ROOT, Block, blocks_of, commands

pytestmark = pytest.mark.thorough

PAGE = ROOT / "docs" / "serving.md"
assert PAGE.name == "serving.md"
START, *ASKING = [block for block in blocks_of(PAGE) if block.reason == "tested"]
README = ROOT / "README.md"
ADDRESS = "http://127.0.0.1:8000"


@contextmanager
def started(command: str, folder: Path) -> Iterator[str]:
    """The address of a server that is started in a folder, on any free port."""
    words = ["-m", *shlex.split(command), "--port", "0"]
    with subprocess.Popen(
        [sys.executable, *words], cwd=folder, stderr=subprocess.PIPE, text=True,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(folder)},
    ) as server:  # fmt: skip
        assert server.stderr is not None
        try:
            lines = (line for line in server.stderr if "address=" in line)
            yield next(lines).rpartition("address=")[2].strip()
        finally:
            server.terminate()


@pytest.fixture(scope="module")
def address(shakespeare_artifact: Path) -> Iterator[str]:
    """A server as the page starts it."""
    (command,) = commands(START.text)
    with started(command, shakespeare_artifact.parent) as address:
        yield address


@pytest.mark.parametrize("block", ASKING, ids=lambda block: block.place)
def test_a_block_gets_an_answer(block: Block, address: str) -> None:
    assert ADDRESS in block.text
    text = block.text.replace(ADDRESS, address)
    command = [sys.executable, "-c", text] if block.language == "python" else ["bash", "-ec", text]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() and '"error"' not in done.stdout


def test_the_readme_serves_models_and_chats(shakespeare_artifact: Path, tmp_path: Path) -> None:
    (block,) = (each for each in blocks_of(README) if each.reason == "tested")
    serve, chat = commands(block.text)
    for name in shlex.split(serve)[2:]:
        shutil.copytree(shakespeare_artifact, tmp_path / name)
    with started(serve, tmp_path) as address:
        words = shlex.split(chat.replace(ADDRESS, address))
        assert words[0] == "ingot" and address in words
        command = [sys.executable, "-m", *words, "--max-tokens", "4"]
        done = subprocess.run(
            command, cwd=tmp_path, input="Who is there?\n", capture_output=True, text=True
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
