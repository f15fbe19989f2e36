"""What `import ingot` offers beyond the runtime: compiling, and models from their directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingot import cache
from ingot.artifact.host import available_memory
from ingot.artifact.reader import Artifact, Check, is_artifact
from ingot.errors import IncompatibleHostError, UsageError
from ingot.files import as_path
from ingot.runtime import llm
from ingot.runtime.config import EngineConfig
from ingot.runtime.session import OnStep
from ingot.runtime.verify import compile_hint, replay

if TYPE_CHECKING:
    from ingot.compiler.options import CompileOptions, Progress, Report


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
    return compile_checked(source, artifact, _options(options))


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


class LLM(llm.LLM):
    """`ingot.runtime.llm.LLM` that also takes a model directory, and compiles it once.

    Args:
        model: the folder of an artifact or of a model in Hugging Face's layout.
        compile_options: the options of `compile` for a model directory, such as
            {"dtype": "float32"}; not allowed with an artifact.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        max_model_len: int | None = None,
        kv_cache_bytes: int | None = None,
        num_threads: int | None = None,
        seed: int = 0,
        config: EngineConfig | None = None,
        on_step: OnStep | None = None,
        check: Check = "fast",
        compile_options: Mapping[str, Any] | None = None,
    ) -> None:
        source = _path("model", model)
        options = None if compile_options is None else _options(compile_options)
        if compile_options and is_artifact(source):
            raise UsageError(
                f"compile_options were given, but {model} is compiled already",
                hint="Give the model directory, or leave them out.",
            )
        super().__init__(
            cache.resolve(source, options),
            max_model_len=max_model_len,
            kv_cache_bytes=kv_cache_bytes,
            num_threads=num_threads,
            seed=seed,
            config=config,
            on_step=on_step,
            check=check,
        )


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
