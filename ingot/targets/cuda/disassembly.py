"""The machine code of a cubin as counts of its instructions, by NVIDIA's disassembler."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path

from ingot.errors import ToolchainError
from ingot.targets.compilers import run_compiler, side_by_side
from ingot.targets.cuda.triton_package import AGAIN, TritonPackage

TIMEOUT_SECONDS = 120
# The address, perhaps the predicate, and the operation with all that it is specialised to.
_LINE = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]+)", re.M)


def instructions(cubin: Path, triton: TritonPackage) -> Mapping[str, int]:
    """How often each instruction stands in a cubin, in the order in which they come first.

    Raises ToolchainError.
    """
    command = (str(triton.tool("nvdisasm")), "-c", str(cubin))
    try:
        done = run_compiler(command, TIMEOUT_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolchainError(f"nvdisasm cannot be run: {error}", hint=AGAIN) from error
    counts = counted(done.stdout)
    if done.returncode != 0 or not counts:
        said = (done.stderr or done.stdout).strip()[:400]
        raise ToolchainError(f"nvdisasm cannot read {cubin}: {said}")
    return counts


def instructions_of(
    files: Collection[str], folder: Path, triton: TritonPackage
) -> dict[str, Mapping[str, int]]:
    """The same of all files of a folder, by their names. Raises ToolchainError."""
    found: dict[str, Mapping[str, int]] = {}

    def count(file: str) -> None:
        found[file] = instructions(folder / file, triton)

    side_by_side(partial(count, file) for file in set(files))
    return found


def counted(listing: str) -> Mapping[str, int]:
    """How often each instruction stands in a listing, in the order in which they come first."""
    return Counter(_LINE.findall(listing))
