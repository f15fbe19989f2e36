"""An environment with the built wheel and its core dependencies, made without the network.

The dependencies are those that the wheel's own metadata names, followed to the end, and come by
symbolic links from the environment that runs the tests. So a dependency that is used but not
declared is missing here, as it would be for a user.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path


def make_environment(folder: Path, wheel: Path, extra: str = "") -> Path:
    """Makes the environment, with what an extra of the wheel needs; returns its programs."""
    venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
    python = folder / "bin" / "python"
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    options = ["--python", str(python), "install", "--no-deps", "--no-index", "-q"]
    run(sys.executable, "-m", "pip", *options, str(wheel))
    (info,) = site.glob("ingot_lm-*.dist-info")
    for needed in closure(PathDistribution(info), extra):
        link(needed, site)
    return python.parent


def closure(root: Distribution, extra: str = "") -> list[Distribution]:
    """What a distribution requires, and what that requires without extras, as installed here."""
    found: dict[str, Distribution] = {}
    waiting = requirements(root, extra)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = distribution(name)
            waiting += requirements(found[name])
    return list(found.values())


def requirements(dist: Distribution, extra: str = "") -> list[str]:
    """Normalised names of what it requires on this platform, with an extra or without."""
    from packaging.requirements import Requirement

    needed = (Requirement(line) for line in dist.requires or ())
    here = (r for r in needed if r.marker is None or r.marker.evaluate({"extra": extra}))
    return [re.sub(r"[-_.]+", "-", r.name).lower() for r in here]


def link(dist: Distribution, site: Path) -> None:
    """Links every top folder and file of an installed distribution into another environment."""
    tops = {file.parts[0] for file in dist.files or () if file.parts[0] not in ("..", "/")}
    for top in tops - {"__pycache__"}:
        if not (site / top).exists():
            (site / top).symlink_to(Path(str(dist.locate_file(top))).resolve())


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end; its output is in the error if it fails."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd="/")
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done
