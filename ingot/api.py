"""What `import ingot` offers beyond the runtime: compiling, and models from their directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingot import cache, compiling
from ingot.artifact.reader import Artifact, is_artifact
from ingot.errors import UsageError
from ingot.files import as_path
from ingot.runtime import llm

if TYPE_CHECKING:
    from ingot.compiler.options import CompileOptions, Report


def compile(model_dir: str | Path, out: str | Path, **options: Any) -> Report:
    """Compiles a model directory into an artifact at `out`; imports PyTorch when called.

    Args:
        model_dir: a model in Hugging Face's layout.
        out: the folder to write; an artifact that is already there is replaced.
        options: fields of `ingot.compiler.options.CompileOptions`, such as dtype. `target` is
            another name of `targets`: one or several, such as "cpu:x86-64-v3".

    Returns what was written and how long each stage took. Raises IngotError.
    """
    source, artifact = _path("model_dir", model_dir), _path("out", out)
    return compiling.compile_checked(source, artifact, _options(options))


class FromDirectory(llm.Model):
    """A `Model` that also takes a model directory, and compiles it once.

    Args:
        model: the folder of an artifact or of a model in Hugging Face's layout, or an artifact
            that is open already.
        compile_options: the options of `compile` for a model directory, such as
            {"dtype": "float32"}; not allowed with an artifact.
        options: those of `ingot.runtime.llm.Model`, such as max_model_len and num_threads.
    """

    def __init__(
        self,
        model: str | Path | Artifact,
        *,
        compile_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        path = model.path if isinstance(model, Artifact) else _path("model", model)
        wanted = None if compile_options is None else _options(compile_options)
        if compile_options and is_artifact(path):
            raise UsageError(
                f"compile_options were given, but {path} is compiled already",
                hint="Give the model directory, or leave them out.",
            )
        signature(llm.Model).bind(path, **options)  # a wrong name, before minutes of compiling
        opened = model if isinstance(model, Artifact) else cache.resolve(path, wanted)
        super().__init__(opened, **options)


class LLM(FromDirectory, llm.LLM):
    """`ingot.runtime.llm.LLM`, opened as `FromDirectory` says."""


def _path(name: str, value: object) -> Path:
    try:
        return as_path(value)
    except TypeError:
        raise UsageError(f"{name} is {value!r:.80}", hint=f"{name} must be a path.") from None


def _options(given: object) -> CompileOptions:
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
