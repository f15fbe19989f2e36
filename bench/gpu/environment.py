"""What card this is, and which versions meet on it."""

from __future__ import annotations

import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from bench.gpu.results import Faults, Values
from bench.gpu.setting import Setting
from ingot.artifact.gpu import find_gpus
from ingot.version import __version__

PACKAGES = ("torch", "triton", "transformers", "numpy")
# What nvidia-smi is asked for.
FIELDS = (
    "driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "power.limit",
    "temperature.gpu", "utilization.gpu", "memory.used",
)  # fmt: skip


def environment(setting: Setting) -> None:
    """Raises RuntimeError where torch or ingot sees no GPU."""
    import torch

    faults = Faults()
    setting.report.note(versions=versions())
    with faults.of("torch"):
        setting.report.note(card=card(torch.cuda.get_device_properties(0)))
    with faults.of("nvidia-smi"):
        setting.report.note(smi=smi())
    gpus = find_gpus()
    setting.report.note(ingot=[f"{gpu.number}: {sorted(gpu.flags)}" for gpu in gpus])
    faults.add("ingot", "" if gpus else "the driver's own interface shows no GPU")
    faults.raise_found()


def versions() -> Values:
    found: Values = {"ingot": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    return found


def card(properties: Any) -> Values:
    """What torch says of a GPU."""
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "gigabytes": round(properties.total_memory / 1e9, 1),
        "multiprocessors": properties.multi_processor_count,
    }


def smi() -> Values:
    """What nvidia-smi says of the first GPU; empty where there is none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    command = [program, f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=20, check=False)
    return parsed(done.stdout)


def parsed(text: str) -> Values:
    """The first line of nvidia-smi's table, by field."""
    values = (text.splitlines() or [""])[0].split(",")
    return {name: value.strip() for name, value in zip(FIELDS, values, strict=False) if value}
