"""From what names a model to its artifact: a folder, a model directory, or a name on the hub."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingot.artifact.reader import Artifact
from ingot.artifact.tree import is_artifact
from ingot.errors import UsageError
from ingot.files import as_path

if TYPE_CHECKING:
    from ingot.compiler.options import CompileOptions


def artifact_path(model: str | Path, device: str = "auto", revision: str | None = None) -> Path:
    """The artifact of a model: itself, or what a model directory or a name on the hub becomes.

    That is downloaded and compiled once. Raises what `model_path` of `ingot.hub.names` and
    `ingot.compile` do.
    """
    path = Path(model)
    wanted = None if is_artifact(path) else options_for_device(device, None, None)
    return compiled_path(local(model, path, revision), wanted)


def path_of(name: str, value: object) -> Path:
    """An argument that is a path, by its name. Raises UsageError."""
    try:
        return as_path(value)
    except TypeError:
        raise UsageError(f"{name} is {value!r:.80}", hint=f"{name} must be a path.") from None


def options_of(given: object) -> CompileOptions:
    """Options of a compile, by their names. Raises UsageError."""
    from ingot.compiler.options import CompileOptions

    if not isinstance(given, Mapping):
        raise UsageError(
            f"compile_options is {given!r:.80}",
            hint='compile_options must be a dict, such as {"dtype": "float32"}.',
        )
    if "target" in given and "targets" in given:
        raise UsageError("target and targets are two names of one option", hint="Give one of them.")
    values = {"targets" if name == "target" else name: value for name, value in given.items()}
    known = [field.name for field in fields(CompileOptions)]
    unknown = [name for name in values if name not in known]
    if unknown:
        raise UsageError(
            f"unknown compile option {unknown[0]!r}", hint=f"Supported: {', '.join(known)}."
        )
    return CompileOptions(**values)


def options_for_device(
    device: str, options: CompileOptions | None, given: Mapping[str, Any] | None
) -> CompileOptions | None:
    """Options of a compile for that device; `given` are those that may name its targets."""
    from ingot.compiler.choose_targets import for_device

    return for_device(device, options, named=bool({"target", "targets"} & set(given or ())))


def local(model: object, path: Path, revision: str | None) -> Path:
    """`path`, or the folder of the model on the hub that `model` names."""
    if revision is None and is_artifact(path):
        return path  # and what downloads need is not imported
    from ingot.hub import names

    return names.model_path(model if isinstance(model, str) else path, revision)


def compiled_path(path: Path, options: CompileOptions | None) -> Path:
    """`path`, or the artifact that the model directory there becomes."""
    if is_artifact(path):
        return path
    from ingot import compiled

    return compiled.resolve(path, options)


def opened(artifact: Path | Artifact, device: str) -> Artifact:
    """An artifact, opened for a device if it is not open already."""
    return artifact if isinstance(artifact, Artifact) else Artifact.open(artifact, device=device)
