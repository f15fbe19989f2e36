"""Compiles kernels in a process of its own: imports Triton, and is run by `toolchain`.

    python -m ingot.targets.cuda.builder FOLDER ARCHITECTURE PACKAGE

compiles the kernels that FOLDER/launches.json lists, from a package of Triton functions, and
writes FOLDER/0.built and so on. What fails is told in FOLDER/failed.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ingot.artifact.launches import decode_launches

FAILED = "failed.json"


def main(folder: Path, architecture: int, package: str) -> int:
    """Compiles all; returns the exit code."""
    from ingot.targets.cuda.triton_compile import compile_kernel

    kernels = decode_launches((folder / "launches.json").read_bytes()).kernels
    for number, spec in enumerate(kernels):
        try:
            compiled = compile_kernel(spec, package, architecture)
        except Exception as error:  # of any kind: Triton promises none
            told = {"kernel": number, "found": f"{type(error).__name__}: {error}"}
            (folder / FAILED).write_text(json.dumps(told))
            return 1
        built_file(folder, number).write_bytes(compiled.encode())
    return 0


def built_file(folder: Path, number: int) -> Path:
    """Path of a built kernel; see `Compiled`."""
    return folder / f"{number}.built"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
