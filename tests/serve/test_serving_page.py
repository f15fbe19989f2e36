"""The blocks of the page on serving, run against the server that its first block starts."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.page_blocks import ROOT, Block, blocks_of, commands

pytestmark = pytest.mark.thorough

PAGE = ROOT / "docs" / "serving.md"
assert PAGE.name == "serving.md"
BLOCKS = [block for block in blocks_of(PAGE) if block.reason == "tested"]
START, *ASKING = BLOCKS
ADDRESS = "http://127.0.0.1:8000"


@pytest.fixture(scope="module")
def address(shakespeare_artifact: Path) -> Iterator[str]:
    """A server as the page starts it, but on any free port."""
    (command,) = commands(START.text)
    words = ["-m", *shlex.split(command), "--port", "0"]
    folder = shakespeare_artifact.parent
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


@pytest.mark.parametrize("block", ASKING, ids=lambda block: block.place)
def test_a_block_gets_an_answer(block: Block, address: str) -> None:
    assert ADDRESS in block.text
    text = block.text.replace(ADDRESS, address)
    command = [sys.executable, "-c", text] if block.language == "python" else ["bash", "-ec", text]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() and '"error"' not in done.stdout
