"""Compiling a model directory, with the golden prompts replayed before the artifact appears."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ingot.artifact.host import available_memory
from ingot.artifact.reader import Artifact
from ingot.errors import IncompatibleHostError
from ingot.runtime.verify import compile_hint, replay

if TYPE_CHECKING:
    from ingot.compiler.options import CompileOptions, Progress, Report


def compile_checked(
    model_dir: Path,
    out: Path,
    options: CompileOptions | None = None,
    progress: Progress | None = None,
) -> Report:
    """Compiles, and replays the golden prompts on this host before the artifact appears.

    Raises VerificationError, with nothing left at `out`, when they are not reproduced.
    """
    from ingot.compiler.compile import compile_model
    from ingot.compiler.options import silent

    return compile_model(model_dir, out, options, progress=progress or silent, check=golden_error)


def golden_error(folder: Path) -> float | None:
    """The largest golden error of an artifact's folder on this host.

    None where this host has none of the targets, or less free memory than the weights take.
    Raises VerificationError when the golden outputs are not reproduced.
    """
    artifact = Artifact.open(folder, unfinished=True)
    weights = sum(artifact.manifest.files[name].size for name in artifact.names("weights"))
    free = available_memory()
    if free is not None and free < weights:
        return None
    try:
        found = replay(artifact)
    except IncompatibleHostError:
        return None
    found.raise_if_failed(compile_hint(artifact, found))
    return found.max_error
