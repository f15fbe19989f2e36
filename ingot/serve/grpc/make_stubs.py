"""Makes the modules of the `.proto` files: when the wheel is built, or on first use in a clone.

setup.py runs this file by its path, so it imports nothing but the standard library.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib import metadata
from pathlib import Path

PROTO = Path(__file__).resolve().parent / "proto"
# Modules import one another by this name, wherever they lie.
PACKAGE = "ingot/serve/grpc/stubs"


def generate(folder: Path) -> None:
    """Writes the modules into a folder. Raises CalledProcessError after what the compiler says."""
    with tempfile.TemporaryDirectory(prefix="ingot-stubs-") as temporary:
        out = Path(temporary)
        outputs = (f"--{kind}_out={out}" for kind in ("python", "grpc_python", "pyi"))
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PACKAGE}={PROTO}", *outputs]
        # Not in a folder where a package of ours could be found before an installed one.
        names = map(str, sorted(PROTO.glob("*.proto")))
        subprocess.run([*command, *names], check=True, cwd=temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for path in (out / PACKAGE).iterdir():
            shutil.copy(path, folder / path.name)


def key() -> str:
    """A hash of all that the modules depend on."""
    digest = hashlib.sha256(metadata.version("grpcio-tools").encode())
    for path in sorted(PROTO.glob("*.proto")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def generated_once(cache: Path) -> Path:
    """The folder below `cache` that has the modules; made by the first that needs it."""
    place = cache / key()
    if place.exists():
        return place
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".making-", dir=cache) as temporary:
        made = Path(temporary) / "made"
        made.mkdir()
        generate(made)
        with suppress(OSError):  # another process was first
            os.rename(made, place)
    return place
