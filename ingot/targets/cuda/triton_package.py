"""Triton as it is installed: found without importing it, which takes a second."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ingot.artifact.drivers import FIRST_NARROW, cuda_of, driver_text
from ingot.errors import ToolchainError
from ingot.targets.compilers import VERSION_SECONDS, run_compiler
from ingot.version import DISTRIBUTION

OLDEST, NEWEST = (3, 6), (3, 9)
SUPPORTED = "3.6 to 3.9"
INSTALL = f"pip install '{DISTRIBUTION}[cuda]'"
AGAIN = "Install it again: pip install --force-reinstall triton"
_VERSION = re.compile(r"^__version__ = ['\"]((\d+)\.(\d+)[^'\"]*)['\"]", re.M)
_RELEASE = re.compile(r"release \d+\.\d+, V([\d.]+)")


# The wheel's assemblers. Binaries of the newer one, of CUDA 13 in Triton 3.9, need newer drivers.
OLDER, NEWER = "ptxas", "ptxas-blackwell"


@dataclass(frozen=True, slots=True)
class Assembler:
    """A program that makes binaries, and its version, such as "12.9.86"."""

    path: Path
    version: str

    @property
    def cuda(self) -> int:
        """The version of CUDA that it is of, as drivers count."""
        return cuda_of(self.version)


@dataclass(frozen=True, slots=True)
class TritonPackage:
    """A version that is supported, and the folder of the package."""

    version: str
    folder: Path

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


def find_assembler(triton: TritonPackage, reach: str = "wide") -> Assembler:
    """The assembler for a reach, one of CUDA_REACHES, which has been started.

    Raises:
        ToolchainError: it cannot be run, or is too new for the reach.
    """
    path = triton.tool(OLDER)
    if reach != "wide" and triton.tool(NEWER).exists():
        path = triton.tool(NEWER)
    found = Assembler(path, _version_of(path))
    if reach == "wide" and found.cuda >= FIRST_NARROW:
        raise ToolchainError(
            f"the older assembler of Triton {triton.version} is ptxas {found.version}",
            hint=f"Its binaries need {driver_text(FIRST_NARROW)}. If all hosts have one, pass "
            f"--cuda-reach new; otherwise install a Triton with ptxas 12: {INSTALL}",
        )
    return found


def _version_of(assembler: Path) -> str:
    try:
        done = run_compiler((str(assembler), "--version"), VERSION_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolchainError(f"Triton's assembler cannot be run: {error}", hint=AGAIN) from error
    found = _RELEASE.search(done.stdout)
    if found is None:
        raise ToolchainError(
            f"Triton's assembler does not say its version: {assembler}", hint=AGAIN
        )
    return found[1]
