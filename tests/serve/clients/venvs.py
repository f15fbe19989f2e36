"""Environments in which other tools live, each made once a test run by pip."""

from __future__ import annotations

import os
import subprocess
import sysconfig
import venv
from functools import partial
from pathlib import Path

from tests.support.made_once import made_once


def python_with(*requirements: str, beside: bool = False) -> Path:
    """The interpreter of an environment with these packages. With `beside`, what is installed here
    counts as installed there, such as the build of torch for a CPU."""
    name = "-".join(("venv", *requirements)).translate(str.maketrans("<>=,[]/ ", "________"))
    return made_once(name, partial(_make, requirements, beside)) / "venv" / "bin" / "python"


def _make(requirements: tuple[str, ...], beside: bool, folder: Path) -> None:
    # The folder is renamed when it is full, which an interpreter survives: it is run by its path.
    root = folder / "venv"
    venv.EnvBuilder(with_pip=True, symlinks=True).create(root)
    (packages,) = (root / "lib").glob("python*/site-packages")
    if beside:
        (packages / "zz_beside.pth").write_text(sysconfig.get_path("purelib") + "\n")
    command = [root / "bin" / "python", "-m", "pip", "install", "-q", "--no-input"]
    done = subprocess.run([*command, *requirements], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def ran(python: Path, *arguments: object, **environment: str) -> str:
    """What a program prints, run in an environment with nothing of this one's paths."""
    given = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python, *map(str, arguments)],
        env={**given, "HF_HUB_OFFLINE": "1", **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
