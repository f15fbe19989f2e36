"""Triton as it is installed: found without importing it, which takes a second."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ingot.errors import ToolchainError
from ingot.targets.compilers import VERSION_SECONDS, run_compiler
from ingot.version import DISTRIBUTION

OLDEST, NEWEST = (3, 6), (3, 9)
SUPPORTED = "3.6 to 3.9"
INSTALL = f"pip install '{DISTRIBUTION}[cuda]'"
AGAIN = "Install it again: pip install --force-reinstall triton"
_VERSION = re.compile(r"^__version__ = ['\"]((\d+)\.(\d+)[^'\"]*)['\"]", re.M)
_RELEASE = re.compile(r"release \d+\.\d+, V([\d.]+)")


@dataclass(frozen=True, slots=True)
class TritonPackage:
    """A version that is supported, and the folder of the package."""

    version: str
    folder: Path

    @property
    def assembler(self) -> Path:
        """The one that builds for every architecture.

        The wheel has a newer one too, whose binaries only newer drivers load.
        """
        return self.tool("ptxas")

    def tool(self, name: str) -> Path:
        """A program of NVIDIA's that the wheel brings."""
        return self.folder / "backends" / "nvidia" / "bin" / name


def find_triton() -> TritonPackage:
    """The package that `import triton` would import.

    Raises:
        ToolchainError: there is none, or none of a supported version.
    """
    spec = find_spec("triton")
    if spec is None or spec.origin is None:
        raise ToolchainError(
            "Triton is not installed", hint=f"Building for CUDA needs it (on Linux): {INSTALL}"
        )
    path = Path(spec.origin)
    try:
        found = _VERSION.search(path.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise ToolchainError(f"Triton cannot be read: {error}", hint=AGAIN) from error
    if found is None:
        raise ToolchainError(f"{path} does not say its version", hint=AGAIN)
    if not OLDEST <= (int(found[2]), int(found[3])) <= NEWEST:
        raise ToolchainError(
            f"Triton {found[1]} is installed",
            hint=f"Supported: {SUPPORTED}. {INSTALL}",
        )
    return TritonPackage(found[1], path.parent)


def assembler_version(triton: TritonPackage) -> str:
    """The version of its assembler, which has been started. Raises ToolchainError."""
    try:
        done = run_compiler((str(triton.assembler), "--version"), VERSION_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolchainError(f"Triton's assembler cannot be run: {error}", hint=AGAIN) from error
    found = _RELEASE.search(done.stdout)
    if found is None:
        raise ToolchainError(
            f"Triton's assembler does not say its version: {triton.assembler}", hint=AGAIN
        )
    return found[1]
