"""What `import ingot` offers beyond the runtime: compiling, and models from their directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ingot.artifact.reader import Artifact
from ingot.artifact.tree import is_artifact
from ingot.errors import UsageError
from ingot.files import as_path
from ingot.runtime import llm, text_model
from ingot.runtime.config import EngineConfig, engine_config
from ingot.runtime.model import Model
from ingot.runtime.vllm_arguments import CONSTRUCTOR, choose

if TYPE_CHECKING:
    from ingot.compiler.options import CompileOptions, Report


def compile(
    model_dir: str | Path, out: str | Path, *, revision: str | None = None, **options: Any
) -> Report:
    """Compiles a model directory into an artifact at `out`; imports PyTorch when called.

    Args:
        model_dir: a model in Hugging Face's layout, or a name on the hub, which is downloaded.
        out: the folder to write; an artifact that is already there is replaced.
        revision: a branch, tag or commit of a model on the hub; None: its main branch.
        options: fields of `ingot.compiler.options.CompileOptions`, such as dtype. `target` is
            another name of `targets`: one or several, such as "cpu:x86-64-v3".

    Returns what was written and how long each stage took. Raises IngotError.
    """
    from ingot import compiling
    from ingot.artifact.writer import check_writable

    source, artifact = _path("model_dir", model_dir), _path("out", out)
    wanted = _options(options)
    check_writable(artifact)  # before gigabytes are downloaded
    return compiling.compile_checked(_local(model_dir, source, revision), artifact, wanted)


class EngineArgs:
    """Arguments of `LLM`, as attributes. They are checked when a model is opened with them."""

    def __init__(self, model: str | Path | Artifact, **options: Any) -> None:
        self.model = model
        vars(self).update(options)


class FromDirectory(Model):
    """A `Model` that also takes a model directory, and compiles it once."""

    def __init__(
        self,
        model: str | Path | Artifact,
        *,
        compile_options: Mapping[str, Any] | None = None,
        config: EngineConfig | None = None,
        **options: Any,
    ) -> None:
        """Opens a model.

        Args:
            model: the folder of an artifact or of a model in Hugging Face's layout, a name on the
                hub, or an open artifact: Artifact.open(folder, "full").
            revision: of a model on the hub, a branch, tag or commit; None: its main branch.
            compile_options: for a model directory, such as {"targets": "cpu:x86-64-v3"}.
            config: the engine's switches, an `EngineConfig`.
            max_model_len: the most tokens of a sequence with its prompt; None: the artifact's.
            kv_cache_bytes: memory for keys and values; None: at most half of what is free.
            num_threads: the most threads of a step; None: one per usable processor.
            seed: seeds the draws of requests that have no seed of their own.
            on_step: a function that the engine's thread calls with the counters after every step.
            generation_config: where requests without parameters get theirs: "auto": from the
                model's generation_config.json; "vllm": from `SamplingParams()`.
            device: "cpu", "cuda", "cuda:1" or "auto"; a model directory is compiled for that.
            dtype: for a model directory, "float32", "bfloat16", for GPUs "float16", or "auto".
            quantization: for a model directory, None, "auto", "int8", "int6", "int5" or "int4".
            kv_cache_dtype: for a model directory, "auto" or "int8".
            max_num_seqs: the most sequences in a step.
            max_num_batched_tokens: the most tokens in a step.
            enable_prefix_caching: whether equal beginnings of prompts are computed once; None: yes.
            kv_cache_memory_bytes: another name of kv_cache_bytes.
            speculative: "ngram" computes guesses of the tokens to come, where that pays, on CPUs.
            speculative_config: vLLM's way to say so, such as {"method": "ngram"}.
            vllm: other arguments of vLLM, if they change nothing; see docs/coming_from.md.

        Raises UsageError for an argument or value that is not supported, what `ingot.compile`
        raises, ArtifactError, IncompatibleHostError or ResourceError.
        """
        artifact, options = _found(model, compile_options, config, options)
        super().__init__(_opened(artifact, options.pop("device", "auto")), **options)

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> Self:
        """Opens a model with the arguments that `engine_args` hold. Raises as `__init__` does."""
        if not isinstance(engine_args, EngineArgs):
            raise UsageError(f"engine_args is {engine_args!r:.80}", hint="Give EngineArgs.")
        return cls(**vars(engine_args))


class LLM(FromDirectory, llm.LLM):
    """A model, ready to generate: an artifact, or a model directory that is compiled once.

    A context manager. Safe to use from several threads. `__init__` describes the arguments.
    """


class _Opening(text_model.TextModel):
    """Opens a `TextModel` from wherever its artifact is or can be made."""

    def __init__(
        self,
        model: str | Path | Artifact,
        *,
        device: str = "auto",
        revision: str | None = None,
        compile_options: Mapping[str, Any] | None = None,
        truncate: bool = False,
        num_threads: int | None = None,
    ) -> None:
        """Opens a model.

        Args:
            model: the folder of an artifact or of a model, a name on the hub, or an open artifact.
            device: "cpu", "cuda", "cuda:1" or "auto"; a model directory is compiled for that.
            revision: of a model on the hub, a branch, tag or commit; None: its main branch.
            compile_options: for a model directory, such as {"dtype": "bfloat16"}.
            truncate: leave out the end of texts that are too long, instead of refusing them.
            num_threads: the most threads of a step; None: one per usable processor.
        """
        if not isinstance(model, Artifact):
            path = _path("model", model)
            wanted = None if compile_options is None else _options(compile_options)
            if not is_artifact(path):
                wanted = _for_device(device, wanted, compile_options)
            model = _opened(_compiled(_local(model, path, revision), wanted), device)
        super().__init__(model, truncate=truncate, num_threads=num_threads)


class Embedder(_Opening, text_model.Embedder):
    """A model that makes vectors of texts, used like a `SentenceTransformer`."""


class Classifier(_Opening, text_model.Classifier):
    """A model that scores texts or pairs of them, used like a `CrossEncoder`."""


_OWN = [name for name in signature(Model).parameters if name not in ("model", "config")]


def _full_signature() -> Signature:
    """Of the constructor, with all names that do something here."""
    parameters = {**signature(FromDirectory).parameters, **signature(Model).parameters}
    rest = parameters.pop("options")
    for row in CONSTRUCTOR:
        if row.acts and row.name not in parameters:
            parameters[row.name] = Parameter(
                row.name, Parameter.KEYWORD_ONLY, default=row.harmless[0]
            )
    return Signature([*parameters.values(), rest.replace(name="vllm")])


# `inspect` and `help` would show what `__init__` takes, which is anything.
FromDirectory.__signature__ = _full_signature()  # type: ignore[attr-defined]


def _found(
    model: str | Path | Artifact,
    compile_options: Mapping[str, Any] | None,
    config: EngineConfig | None,
    given: Mapping[str, Any],
) -> tuple[Path | Artifact, dict[str, Any]]:
    """The artifact of a model, and the options to open it with.

    All names are checked before anything is downloaded or compiled, which can take minutes.
    """
    path = model.path if isinstance(model, Artifact) else _path("model", model)
    compiled = isinstance(model, Artifact) or is_artifact(path)
    chosen = choose(given, CONSTRUCTOR, _OWN, compiled=compiled)
    config = _merged_config(config, chosen.config)
    wanted = _merged_options(compile_options, chosen.compile)
    if compile_options and compiled:
        raise UsageError(
            f"compile_options were given, but {path} is compiled already",
            hint="Give the model directory, or leave them out.",
        )
    options = {**chosen.options, "config": config}
    if not compiled:
        wanted = _for_device(options.get("device", "auto"), wanted, compile_options)
    revision = options.pop("revision", None)
    path = _local(model, path, revision)
    if isinstance(model, Artifact):
        if "device" in chosen.options:
            raise UsageError(
                f"device is given, but {path} is open already",
                hint="Give the device to Artifact.open, or the path to LLM.",
            )
        return model, options
    return _compiled(path, wanted), options


def _for_device(
    device: str, options: CompileOptions | None, given: Mapping[str, Any] | None
) -> CompileOptions | None:
    """Options of a compile for that device; `given` are those that may name its targets."""
    from ingot.compiler.choose_targets import for_device

    return for_device(device, options, named=bool({"target", "targets"} & set(given or ())))


def _opened(artifact: Path | Artifact, device: str) -> Artifact:
    return artifact if isinstance(artifact, Artifact) else Artifact.open(artifact, device=device)


def _merged_config(given: object, chosen: Mapping[str, Any]) -> EngineConfig:
    """The switches that were given, with those that were chosen by vLLM's names."""
    config = engine_config(given)
    if given is not None and chosen:
        raise UsageError(
            f"config and {next(iter(chosen))} are both given", hint="Set it in the EngineConfig."
        )
    return replace(config, **chosen)


def _merged_options(given: object, chosen: Mapping[str, Any]) -> CompileOptions | None:
    """The options of the compile that were given, with those that were chosen by vLLM's names."""
    if given is None:
        return _options(chosen) if chosen else None
    options = _options(given)
    for name in chosen:
        if isinstance(given, Mapping) and name in given:
            raise UsageError(
                f"{name} is given twice", hint="Leave it out of compile_options, or give it there."
            )
    return replace(options, **chosen)


def _local(model: object, path: Path, revision: str | None) -> Path:
    """`path`, or the folder of the model on the hub that `model` names."""
    if revision is None and is_artifact(path):
        return path  # and what downloads need is not imported
    from ingot.hub import names

    return names.model_path(model if isinstance(model, str) else path, revision)


def _compiled(path: Path, options: CompileOptions | None) -> Path:
    """`path`, or the artifact that the model directory there becomes."""
    if is_artifact(path):
        return path
    from ingot import compiled

    return compiled.resolve(path, options)


def artifact_path(model: str | Path, device: str = "auto", revision: str | None = None) -> Path:
    """The artifact of a model: itself, or what a model directory or a name on the hub becomes.

    That is downloaded and compiled once. Raises what `model_path` of `ingot.hub.names` and
    `ingot.compile` do.
    """
    path = Path(model)
    wanted = None if is_artifact(path) else _for_device(device, None, None)
    return _compiled(_local(model, path, revision), wanted)


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
