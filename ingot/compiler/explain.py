"""Report of `ingot explain` on a model directory. It reads no weights, and needs no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from ingot.artifact.formats import Storage
from ingot.artifact.pooler import pooled_in_words, scores_in_words
from ingot.compiler.choose_targets import resolve_targets
from ingot.compiler.needs import Use, Way, options_for, ways_to_store, words_of
from ingot.compiler.options import CompileOptions
from ingot.compiler.quantization.kept import kept_storage, stored_already
from ingot.compiler.resolve import possible_programs, resolve
from ingot.compiler.tokenizer import load_tokenizer
from ingot.errors import (
    CheckpointError,
    CodegenError,
    ConfigError,
    IngotError,
    Noting,
    TokenizerError,
    UnsupportedModelError,
    UsageError,
)
from ingot.models import registry
from ingot.models.attention_config import AttentionConfig
from ingot.models.blueprint import Blueprint
from ingot.models.checkpoints.checkpoint_files import open_files
from ingot.models.checkpoints.formats.cache_scales import ignored_scales
from ingot.models.checkpoints.formats.quantized import QuantizedTensor
from ingot.models.checkpoints.formats.resolve import with_quantized
from ingot.models.checkpoints.sources import AnySource
from ingot.models.checkpoints.weight_table import quantized_sources, resolve_sources
from ingot.models.config import ModelConfig, Placement
from ingot.models.family import Family
from ingot.models.model_dir import ModelDir
from ingot.targets.target import TargetKind, kind_of

# What each kind of error is about, the most special first.
ABOUT: tuple[tuple[type[IngotError], str], ...] = (
    (UnsupportedModelError, "model"),
    (ConfigError, "config"),
    (TokenizerError, "tokenizer"),
    (CheckpointError, "weights"),
    (CodegenError, "target"),
    (UsageError, "options"),
)

# Where norms stand, if not before attention and MLP alone.
PLACEMENTS: Mapping[Placement, str] = {
    "sandwich": "norms before and after attention and MLP",
    "post": "norms after attention and MLP",
    "parallel": "attention and MLP side by side, on one norm",
    "parallel_pair": "attention and MLP side by side, on a norm each",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Reason for which a compile refuses a model.

    Attributes:
        about: model, config, tokenizer, weights, target, options, or folder for any other fault.
        found: what was found; hint: what is supported, and what to do.
    """

    about: str
    found: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Verdict on a model directory, with its reasons and the model's needs.

    Attributes:
        supported: whether a compile takes it as it is.
        architecture: class name in config.json; family: name of the family that builds it.
        reasons: why it is not supported; all that can be told without reading weights.
        features: what the model is made of.
        ignored: what its files have and what changes nothing, where that may be a surprise.
        nearest: the nearest supported architecture of an unknown one.
        differing: keys of config.json that the nearest family does not know or take.
        absent: keys that the nearest family reads and config.json lacks.
        num_parameters: parameters, a tied matrix counted once; active_parameters: those of them
            that compute a token, which has only some of the experts.
        programs: what an artifact of it can do, by the names of programs; a compile makes the
            first, and the others where --programs asks for them.
        dtype: what a compile computes in where no option says otherwise.
        target: what the sizes are for.
        compile_options: that a compile needs for that context and so many seats.
        context, seats, memory_bytes: what the model is to do; see `Use`.
        ways: how it can be stored, and what it needs then. Empty, as the numbers above are 0,
            where config.json or the tensors are at fault.
    """

    supported: bool
    architecture: str
    family: str = ""
    reasons: tuple[Reason, ...] = ()
    features: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    nearest: str = ""
    differing: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    num_parameters: int = 0
    active_parameters: int = 0
    programs: dict[str, str] = field(default_factory=dict)
    dtype: str = ""
    target: str = ""
    compile_options: tuple[str, ...] = ()
    context: int = 0
    seats: int = 0
    memory_bytes: int | None = None
    ways: tuple[Way, ...] = ()


def supported() -> dict[str, str]:
    """The family of every architecture that is supported, by the class name in config.json."""
    families = registry.families().values()
    return dict(sorted((name, family.name) for family in families for name in family.architectures))


def explain(
    path: Path, options: CompileOptions | None = None, use: Use | None = None
) -> Explanation:
    """Explains whether a model directory is supported, why, and what it needs; reads no weights.

    Args:
        options: of the compile that is asked about.
        use: what the model is to do.

    Raises:
        ModelDirError: the path is no directory, or holds a model in a format of another program.
        UsageError: no such target is known, or the model cannot be used so.
    """
    options, use = options or CompileOptions(), use or Use()
    resolve_targets(options)
    model_dir = ModelDir.open(path)
    faults, ignored = list[IngotError](), list[str]()
    told: dict[str, Any] = {"architecture": ""}
    config = None
    with Noting(faults.append):
        values = model_dir.config
        family = registry.known_family(values)
        told["architecture"] = values["architectures"][0]
        if family:
            config = _read_config(family, values, model_dir, faults, ignored)
        else:
            told |= _nearest(values)
            faults.append(registry.unknown_architecture(values))
    with Noting(faults.append):
        load_tokenizer(model_dir, config.vocab_size if config else None)
    blueprint = registry.blueprint(config) if config else None
    quantized = _check_weights(model_dir, config, blueprint, faults, ignored)
    if config and blueprint:
        told |= {"family": config.family.name, "features": features(config)}
        possible = possible_programs(config)
        told["programs"] = {program.name: program.meaning for program in possible}
        sound = not any(isinstance(f, (ConfigError, UnsupportedModelError)) for f in faults)
        if quantized is not None and sound:
            told |= _needs(config, blueprint, quantized, options, use.resolved(config), faults)
    reasons = tuple(map(_reason, faults))
    return Explanation(supported=not reasons, reasons=reasons, ignored=tuple(ignored), **told)


def _reason(error: IngotError) -> Reason:
    about = next((about for kind, about in ABOUT if isinstance(error, kind)), "folder")
    return Reason(about=about, found=error.found, hint=error.hint)


def _nearest(values: dict[str, Any]) -> dict[str, Any]:
    near = registry.nearest_family(values)
    return {
        "nearest": near.family.architectures[0],
        "differing": near.differing,
        "absent": near.absent,
    }


def _read_config(
    family: Family,
    values: dict[str, Any],
    model_dir: ModelDir,
    faults: list[IngotError],
    ignored: list[str],
) -> ModelConfig | None:
    """The config of a known architecture, if its values make one; notes what is wrong with it, and
    what changes nothing."""
    reading = registry.read_config(family, values)
    faults += reading.faults
    ignored += reading.fields.ignored
    if reading.config is None:
        return None
    with Noting(faults.append):
        return registry.with_other_files(reading.config, model_dir)
    return reading.config


def _check_weights(
    model_dir: ModelDir,
    config: ModelConfig | None,
    blueprint: Blueprint | None,
    faults: list[IngotError],
    ignored: list[str],
) -> dict[str, QuantizedTensor] | None:
    """The parameters that are stored quantized, by the headers of the files; None where a tensor
    contradicts the config. Notes what changes nothing."""
    unread: list[IngotError] = []
    with ExitStack() as stack:
        files = [stack.enter_context(f) for f in open_files(model_dir, unread.append)]
        infos = {name: info for file in files for name, info in file.tensors.items()}
    ignored += ignored_scales(infos)
    wrong: list[IngotError] = []
    infos = with_quantized(model_dir, infos, wrong.append)
    sources: Mapping[str, AnySource] = {}
    # What is wrong with quantized matrices would be told again of each that is missing then.
    if config and blueprint and not wrong:
        shapes = blueprint.parameters
        sources, _ = resolve_sources(infos, config, shapes, wrong.append, whole=not unread)
    faults += [*unread, *wrong]
    return None if wrong else quantized_sources(sources)


def _needs(
    config: ModelConfig,
    blueprint: Blueprint,
    quantized: Mapping[str, QuantizedTensor],
    options: CompileOptions,
    use: Use,
    faults: list[IngotError],
) -> dict[str, Any]:
    """The sizes of an explanation; notes what the target does not take."""
    options = options_for(use, options, config)
    with Noting(faults.append):
        resolved = resolve(options, config)
        for kind in {kind_of(target) for target in resolved.targets}:
            _check_experts(kind, config)  # without kernels for them nothing tells their size
            with Noting(faults.append):
                _check_heads(kind, config)
            with Noting(faults.append):
                _check_rows(kind, config)
        kept: dict[str, Storage] = {}
        with Noting(faults.append):
            kept = kept_storage(quantized, options, resolved.targets)
        return {
            "features": (*features(config), *stored_already(quantized, kept)),
            "num_parameters": sum(map(prod, blueprint.parameters.values())),
            "active_parameters": active_parameters(blueprint),
            "dtype": resolved.dtype_reason,
            "target": resolved.targets[0].name,
            "compile_options": words_of(options),
            "context": use.context,
            "seats": use.seats,
            "memory_bytes": use.memory_bytes,
            "ways": ways_to_store(config, blueprint, options, use, kept),
        }
    return {}


def features(config: ModelConfig) -> tuple[str, ...]:
    """Lists the features of a model: what every model has, then what only some have."""
    attention = [mixer for mixer in config.mixers if isinstance(mixer, AttentionConfig)]
    kinds = [_rotation(config)] if config.ropes else []
    kinds += ["learned positions"] if config.learned_positions else []
    norms = {mixer.qk_norm for mixer in attention}
    windows = [window for window in config.windows if window]
    with_sinks = sum(mixer.sinks for mixer in attention)
    softcap = max((mixer.softcap for mixer in attention), default=0.0)
    buckets = max((m.distances.buckets for m in attention if m.distances), default=0)
    parts = [part for layer in config.layers for part in layer.parts]
    beside = {layer.per_layer.size for layer in config.layers if layer.per_layer}
    biased = ", ".join(dict.fromkeys(name for part in parts for name in part.biased))
    features = {
        f"{config.num_layers} layers of width {config.hidden_size}, {_mlps(config)}": True,
        _counted([mixer.described for mixer in config.mixers], config.num_layers): True,
        f"vocabulary of {config.vocab_size}, {_head(config)}": True,
        f"{_each(kinds) or 'no embedding of positions'}, up to "
        f"{config.max_position_embeddings} positions": True,
        f"checkpoint in {config.checkpoint_dtype}": True,
        PLACEMENTS.get(config.placement, ""): config.placement in PLACEMENTS,
        "queries and keys are normalised per head": norms & {"head", "each_head"},
        "queries and keys are normalised over their whole width": "full" in norms,
        "values are normalised per head": any(mixer.v_norm for mixer in attention),
        f"each layer has an input of its own, of {max(beside, default=0)}": beside,
        f"sliding window of {max(windows, default=0)} tokens in {len(windows)} layers": windows,
        f"attention sinks in {with_sinks} layers": with_sinks,
        "results of attention are gated": any(mixer.gate != "none" for mixer in attention),
        f"scores depend on distances in {buckets} buckets": buckets,
        f"scores are capped at {softcap:g}": softcap,
        f"logits are capped at {config.logit_softcap:g}": config.logit_softcap,
        f"biases: {biased}": biased,
    }
    return tuple(text for text, present in features.items() if present)


def _head(config: ModelConfig) -> str:
    """Describes what a model ends with."""
    if config.head is None:
        return "tied head" if config.tie_embeddings else "separate head"
    if config.head.labels:
        return scores_in_words(len(config.head.labels), config.head.pooling)
    if not config.head.pooling:
        return "a vector for each token"
    made = "weights of all tokens of the vocabulary" if config.head.log1ps else "vectors"
    return f"{made} from {pooled_in_words(config.head.pooling)}"


def _rotation(config: ModelConfig) -> str:
    """Describes the rotation of layers, and how many rotate if not all do."""
    kinds = _each(rope.type for rope in config.ropes)
    rotating = sum(bool(mixer.ropes) for mixer in config.mixers)
    some = f" in {rotating} of {config.num_layers} layers" if rotating < config.num_layers else ""
    return f"rotary embedding {kinds}{some}"


def _each(texts: Iterable[str]) -> str:
    """Different texts, each once."""
    return " and ".join(dict.fromkeys(texts))


def _mlps(config: ModelConfig) -> str:
    """Describes the MLPs of layers; where some have none, in how many which is."""
    texts = [layer.mlp.described for layer in config.layers if layer.mlp]
    if len(texts) == config.num_layers:
        return _each(texts)
    return _counted(texts, config.num_layers) or "no MLPs"


def _counted(texts: Sequence[str], layers: int) -> str:
    """Different texts, each once, and of how many layers it is where not of all."""
    counts = Counter(texts)
    if len(counts) == 1 and len(texts) == layers:
        return texts[0]
    return "; ".join(f"in {count} of {layers} layers {text}" for text, count in counts.items())


def active_parameters(blueprint: Blueprint) -> int:
    """The parameters that compute a token: of experts, those of as many as it picks."""
    return sum(
        prod(shape[1:]) * part.picks if part.picks else prod(shape)
        for _, part in blueprint.modules()
        for shape in part.shapes.values()
    )


def _check_heads(kind: TargetKind, config: ModelConfig) -> None:
    """Raises CodegenError for heads that no kernel of a target takes."""
    if config.largest_head > kind.largest_head:
        raise CodegenError(
            f"heads of {config.largest_head} are too large for {kind.name} targets",
            hint=f"supported: heads of at most {kind.largest_head}",
        )


def _check_rows(kind: TargetKind, config: ModelConfig) -> None:
    """Raises CodegenError for rows of latent attention that no kernel of a target takes."""
    if config.largest_row and not kind.largest_row:
        raise CodegenError(
            f"{kind.name} targets have no kernels for latent attention",
            hint="Compile for a CPU, such as --target cpu:native.",
        )
    for what, found, most in (
        ("rows", config.largest_row, kind.largest_row),
        ("ranks", config.largest_rank, kind.largest_rank),
    ):
        if found > most:
            raise CodegenError(
                f"latent {what} of {found} are too large for {kind.name} targets",
                hint=f"supported: latent {what} of at most {most}",
            )


def _check_experts(kind: TargetKind, config: ModelConfig) -> None:
    """Raises CodegenError where a target has no kernels for what the model's MLPs are."""
    if config.has_experts and not kind.has_experts:
        raise CodegenError(
            f"{kind.name} targets have no kernels for experts",
            hint="Compile for a CPU, such as --target cpu:native.",
        )
