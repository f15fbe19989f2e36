"""What `import ingot` offers beyond the runtime: compiling, and models from their directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ingot.artifact.reader import Artifact
from ingot.artifact.tree import is_artifact
from ingot.errors import UsageError
from ingot.opening import compiled_path, local, opened, options_for_device, options_of, path_of
from ingot.runtime import llm
from ingot.runtime.config import EngineConfig, engine_config
from ingot.runtime.initial_record import Records
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

    source, artifact = path_of("model_dir", model_dir), path_of("out", out)
    wanted = options_of(options)
    check_writable(artifact)  # before gigabytes are downloaded
    return compiling.compile_checked(local(model_dir, source, revision), artifact, wanted)


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
            prompt_cache: a folder where prefixes of prompts outlive the process; None: nowhere.
            prompt_cache_bytes: the most bytes of its files; None: 10 GB.
            speculative: "ngram" computes guesses of the tokens to come, where that pays, on CPUs.
            speculative_config: vLLM's way to say so, such as {"method": "ngram"}.
            vllm: other arguments of vLLM, if they change nothing; see docs/coming_from.md.

        Raises UsageError for an argument or value that is not supported, what `ingot.compile`
        raises, ArtifactError, IncompatibleHostError or ResourceError.
        """
        artifact, options = _found(model, compile_options, config, options)
        super().__init__(opened(artifact, options.pop("device", "auto")), **options)

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

    def read_state(self, path: Path) -> Records:
        """The arrays of a tuned state, by the names of the model's states. Raises CheckpointError
        for a file that is no state, or one of another model."""
        from ingot.models.pth.states import load_state

        return load_state(path, self.artifact.plan_of(self.artifact.target))


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
    path = model.path if isinstance(model, Artifact) else path_of("model", model)
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
        wanted = options_for_device(options.get("device", "auto"), wanted, compile_options)
    revision = options.pop("revision", None)
    path = local(model, path, revision)
    if isinstance(model, Artifact):
        if "device" in chosen.options:
            raise UsageError(
                f"device is given, but {path} is open already",
                hint="Give the device to Artifact.open, or the path to LLM.",
            )
        return model, options
    return compiled_path(path, wanted), options


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
        return options_of(chosen) if chosen else None
    options = options_of(given)
    for name in chosen:
        if isinstance(given, Mapping) and name in given:
            raise UsageError(
                f"{name} is given twice", hint="Leave it out of compile_options, or give it there."
            )
    return replace(options, **chosen)
