"""Builds the wheel into a folder, from a copy of the sources, so that nothing stale gets in.

It needs no network: setuptools comes from the environment that runs it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("ingot", "pyproject.toml", "setup.py", "README.md", "LICENSE")
PIP = ("pip", "--disable-pip-version-check", "wheel", "-q")
OPTIONS = ("--no-deps", "--no-build-isolation", "--no-index")


def build_wheel(folder: Path) -> Path:
    """Builds the wheel and returns its path; an older wheel of the same version is replaced.

    Raises subprocess.CalledProcessError, after what pip says on stderr.
    """
    with tempfile.TemporaryDirectory(prefix="ingot-wheel-") as temporary:
        source, out = Path(temporary, "source"), Path(temporary, "out")
        source.mkdir()
        for name in SOURCES:
            path = ROOT / name
            if path.is_dir():
                shutil.copytree(path, source / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(path, source / name)
        command = [sys.executable, "-m", *PIP, *OPTIONS, "-w", str(out), str(source)]
        # Not in the repository: `-m` would find a folder there before an installed package.
        subprocess.run(command, check=True, cwd=temporary)
        (wheel,) = out.glob("*.whl")
        folder.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(wheel, folder / wheel.name))


if __name__ == "__main__":
    print(build_wheel(Path(sys.argv[1])))
