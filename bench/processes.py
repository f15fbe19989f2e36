"""Runs the measurements of this folder, each in a process of its own, as a user would start it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "bench"


def made_model(shape: str, work: Path) -> Path:
    """A model directory of that shape with random weights; made in `work` if it is not there."""
    model = work / shape
    if not (model / "config.json").exists():
        run_script("make_model", str(model), "--shape", shape)
    return model


def run_script(name: str, *args: str) -> dict[str, Any]:
    """Runs a script of this folder; it prints one line of JSON at its end."""
    text = _output("-m", f"bench.{name}", *args)
    values: dict[str, Any] = json.loads(text.splitlines()[-1])
    return values


def ingot_bench(artifact: Path, *options: str) -> dict[str, Any]:
    """What `ingot bench --json` prints."""
    found: dict[str, Any] = json.loads(
        _output("-m", "ingot", "bench", str(artifact), "--json", *options)
    )
    return found


def _output(*args: str) -> str:
    command = [sys.executable, *args]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def installed(byte_code: str) -> dict[str, str]:
    """An environment in which modules are compiled once, as those of an installed package are."""
    return {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": byte_code}


def processors() -> list[str]:
    """The name of each of this machine's processors."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
