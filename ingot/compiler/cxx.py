"""The C++ compiler of this host, tried for a target; imports no torch."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from pathlib import Path

from ingot.artifact.target import Target
from ingot.errors import ToolchainError
from ingot.targets.compilers import version_line
from ingot.targets.cpu import toolchain


def tried_compiler(target: Target) -> tuple[str, str]:
    """The command of the compiler, which has built next to nothing for a CPU target, and what it
    says about its version. Raises ToolchainError where a compile for the target would."""
    with tempfile.TemporaryDirectory(prefix="ingot-try-") as folder:
        toolchain.try_tools(Path(folder), target)
    command = toolchain.find_compiler()
    try:
        return shlex.join(command), version_line(command)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolchainError(f"{shlex.join(command)} --version: {error}") from error
