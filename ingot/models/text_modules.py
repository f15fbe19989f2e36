"""Reads what a directory of sentence-transformers says of a model: pooling, layers, prompts.

`modules.json` lists what a text goes through: a Transformer, a Pooling, perhaps Dense layers, and
Normalize. Each may have a folder with a config of its own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar, cast

from ingot.artifact.pooler import Pooler
from ingot.errors import ConfigError, UnsupportedModelError
from ingot.models.config import ModelConfig
from ingot.models.fields import Fields
from ingot.models.file_names import MODULES, PROMPTS, SENTENCE_CONFIG
from ingot.models.foreign.config import AnyConfig, ForeignConfig
from ingot.models.head_config import DenseConfig, HeadActivation, HeadConfig, Pooling
from ingot.models.model_dir import ModelDir

SUPPORTED = (
    *("Transformer", "Pooling", "Dense", "Normalize", "MultiVectorMask"),
    *("MLMTransformer", "SpladePooling"),
)
# Ways to pool, by their names and the flags that stood for them before, in the order of the flags.
NAMES: dict[str, Pooling] = {
    "cls": "first",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt",
    "weightedmean": "weighted_mean",
    "lasttoken": "last",
}
FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
ACTIVATIONS: dict[str, HeadActivation] = {
    "torch.nn.modules.linear.Identity": "none",
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.SiLU": "silu",
}
SIMILARITIES = {each: each for each in ("cosine", "dot", "euclidean", "manhattan")}
OF_TOKENS = {"maxsim": "maxsim", "MaxSim": "maxsim", "meanmaxsim": "meanmaxsim"}
FOLDER = "config.json"


Config = TypeVar("Config", ModelConfig, ForeignConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextModules:
    """What follows the layers of a model, by its `modules.json`: a vector of a text, or of each
    token where nothing is pooled."""

    pooling: tuple[Pooling, ...] = ()
    include_prompt: bool = True
    layers: tuple[DenseConfig, ...] = ()
    normalize: bool = False
    log1ps: int = 0  # of a SPLADE pooling: how often scores become weights


def read_modules(model_dir: ModelDir) -> TextModules | None:
    """The modules of a directory; None where it lists none.

    Raises:
        ConfigError: a file that is no such list, or has keys that are not known.
        UnsupportedModelError: modules, or ways to pool, that nothing here stands for.
    """
    if not model_dir.has(MODULES):
        return None
    listed = _listed(model_dir)
    kinds = [kind for kind, _ in listed if not kind.endswith("Transformer")]
    for pooling in {"Pooling", "SpladePooling"} & {*kinds[1:]}:
        raise UnsupportedModelError(
            f"{MODULES} has {kinds[0]} before {pooling}", hint="Supported: Pooling comes first."
        )
    if "SpladePooling" in kinds and len(kinds) > 1:
        raise UnsupportedModelError(
            f"{MODULES} has {kinds[1]} behind SpladePooling", hint="Supported: nothing behind it."
        )
    found = TextModules()
    for kind, folder in listed:
        if kind == "Pooling":
            found = _pooling(_fields(model_dir, folder))
        elif kind == "SpladePooling":
            found = _splade(_fields(model_dir, folder))
        elif kind == "Dense":
            fields = _fields(model_dir, folder)
            _check_reads(fields, found)
            found = replace(found, layers=(*found.layers, _dense(fields, folder)))
        elif kind == "Normalize":
            if model_dir.has(f"{folder}/{FOLDER}"):
                _check_reads(_fields(model_dir, folder), found)
            found = replace(found, normalize=True)
    return found


def with_modules(config: Config, model_dir: ModelDir) -> Config:
    """A config of a model that embeds, with what the other files of its directory say of it."""
    if config.head is None or config.head.labels:
        return config
    modules = read_modules(model_dir)
    if modules is None:
        return config
    if not modules.log1ps:
        head = HeadConfig(pooling=modules.pooling, layers=modules.layers)
        return replace(config, head=head)
    masked = config.head.masked
    if masked is None or isinstance(config, ForeignConfig):
        raise UnsupportedModelError(
            f"{MODULES} has SpladePooling behind a {config.architecture}",
            hint="Supported: a ...ForMaskedLM of BERT, DistilBERT, RoBERTa or ModernBERT.",
        )
    head = HeadConfig(pooling=modules.pooling, masked=masked, log1ps=modules.log1ps)
    return replace(config, head=head, tie_embeddings=masked.tied)


def read_pooler(model_dir: ModelDir, config: AnyConfig) -> Pooler | None:
    """What a model makes of whole texts; None of a decoder whose directory lists no modules."""
    modules, longest = read_modules(model_dir), config.max_position_embeddings
    if config.head is not None and config.head.labels:
        labels = config.head.labels
        return Pooler(
            task="classify" if config.head.pooling else "token_classify",
            pooling=config.head.pooling,
            size=len(labels),
            max_tokens=longest,
            types=config.token_types,
            type_stride=longest,
            activation=_activation(model_dir, len(labels)),
            labels=labels,
        )
    if config.head is None and modules is None:
        return None
    if config.head is None and modules and modules.layers:
        raise UnsupportedModelError(
            f"{MODULES} has Dense behind a {config.architecture}",
            hint="Dense layers are supported behind encoders.",
        )
    if config.head is None and modules and (modules.log1ps or not modules.pooling):
        has = "SpladePooling" if modules.log1ps else "no Pooling"
        raise UnsupportedModelError(
            f"{MODULES} has {has} behind a {config.architecture}",
            hint="That is supported behind encoders.",
        )
    said = _said(model_dir)
    head = config.head or HeadConfig(pooling=modules.pooling if modules else ("last",))
    size = config.vocab_size if head.log1ps else head.width(config.row_size)
    usual = "dot" if head.log1ps else "cosine" if head.pooling else "maxsim"
    return Pooler(
        task="embed" if head.pooling else "token_embed",
        pooling=head.pooling,
        include_prompt=modules is None or modules.include_prompt,
        guessed=modules is None,
        size=size,
        normalize=modules is not None and (modules.normalize or said.of_colbert),
        dimensions=_dimensions(model_dir, size),
        sparse=head.log1ps > 0,
        nested=bool(model_dir.config.get("is_matryoshka")),
        max_tokens=min(longest, _max_tokens(model_dir) or longest),
        prompts=said.prompts,
        default_prompt=said.default,
        similarity=said.similarity or usual,
        types=config.token_types,
        type_stride=longest,
    )


def token_size(config: AnyConfig) -> int:
    """Numbers of a token's row: what is pooled, or all that follows where nothing is."""
    if config.head is None or config.head.pooling:
        return config.row_size
    return config.head.width(config.row_size)


def _activation(model_dir: ModelDir, count: int) -> Literal["none", "sigmoid", "softmax"]:
    """What makes probabilities of scores: as config.json has it, or the usual one."""
    settings = model_dir.config.get("sentence_transformers")
    named = settings.get("activation_fn", "") if isinstance(settings, dict) else ""
    named = named or model_dir.config.get("sbert_ce_default_activation_function") or ""
    if str(named).endswith("Identity"):
        return "none"
    return "sigmoid" if count == 1 or str(named).endswith("Sigmoid") else "softmax"


def _dimensions(model_dir: ModelDir, size: int) -> tuple[int, ...]:
    """The sizes that vectors may be cut to, where config.json lists them."""
    listed = model_dir.config.get("matryoshka_dimensions") or []
    if not isinstance(listed, list) or not all(type(d) is int and 0 < d <= size for d in listed):
        raise ConfigError(
            f"config.json has matryoshka_dimensions = {listed!r:.80}",
            hint=f"matryoshka_dimensions must be a list of numbers from 1 to {size}",
        )
    return tuple(sorted(listed))


def _listed(model_dir: ModelDir) -> list[tuple[str, str]]:
    """The kind of each module, and its folder."""
    try:
        entries = json.loads(model_dir.json_bytes(MODULES))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{MODULES} is no JSON: {error}", hint="fetch it again") from error
    if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
        raise ConfigError(f"{MODULES} is no list of modules", hint="fetch it again")
    found = []
    for entry in entries:
        kind, folder = str(entry.get("type", "")).rpartition(".")[2], str(entry.get("path", ""))
        if kind not in SUPPORTED:
            raise UnsupportedModelError(
                f"{MODULES} has a module {kind or entry!r:.80}",
                hint=f"Supported: {', '.join(SUPPORTED)}.",
            )
        found.append((kind, folder))
    return found


def _fields(model_dir: ModelDir, folder: str) -> Fields:
    name = f"{folder}/{FOLDER}"
    return Fields(model_dir.json(name), name)


def _pooling(fields: Fields) -> TextModules:
    """How rows are pooled: by the names that a file has, or else by its flags, or by the mean.

    Raises UnsupportedModelError for a way that is not known.
    """
    fields.raw("word_embedding_dimension", None)
    fields.raw("embedding_dimension", None)
    flagged = [name for flag, name in FLAGS.items() if fields.flag(flag, False)]
    named = fields.raw("pooling_mode", None)
    if named is None:
        named = flagged or ["mean"]
    names = named if isinstance(named, list) else [named]
    unknown = [f"{name!r:.40}" for name in names if not isinstance(name, str) or name not in NAMES]
    if unknown or not names:
        raise UnsupportedModelError(
            f"{fields.where} pools by {' and '.join(unknown) or 'nothing'}",
            hint=f"Supported: {', '.join(NAMES)}.",
        )
    include_prompt = fields.flag("include_prompt", True)
    fields.finish()
    return TextModules(pooling=tuple(NAMES[name] for name in names), include_prompt=include_prompt)


def _splade(fields: Fields) -> TextModules:
    """How scores of tokens become the weights of a text."""
    for key in ("word_embedding_dimension", "embedding_dimension", "chunk_size"):
        fields.raw(key, None)
    how = fields.choice("pooling_strategy", {"max": "max", "sum": "sum"}, "max")
    log1ps = fields.choice("activation_function", {"relu": "1", "log1p_relu": "2"}, "relu")
    fields.finish()
    return TextModules(pooling=(cast(Pooling, how),), log1ps=int(log1ps))


def _check_reads(fields: Fields, before: TextModules) -> None:
    """Raises ConfigError where a module reads or gives something else than those before it."""
    of_texts = ("sentence_embedding",)
    names = of_texts if before.pooling else ("token_embeddings", *of_texts)
    for key in ("module_input_name", "module_output_name"):
        fields.refuse(key, (None, *names), f"supported: {names[0]}")


def _dense(fields: Fields, folder: str) -> DenseConfig:
    fields.integer("in_features")
    made = DenseConfig(
        size=fields.integer("out_features"),
        bias=fields.flag("bias", True),
        activation=cast(
            HeadActivation,
            fields.choice(
                "activation_function", cast(Any, ACTIVATIONS), "torch.nn.modules.activation.Tanh"
            ),
        ),
        source=f"{folder}/linear",
    )
    fields.refuse("use_residual", (False,), "supported: layers whose result is all that they give")
    fields.finish()
    return made


@dataclass(frozen=True, slots=True)
class _Said:
    prompts: dict[str, str]
    default: str
    similarity: str
    of_colbert: bool = False  # PyLate has no module that makes vectors of tokens 1 long


def _said(model_dir: ModelDir) -> _Said:
    """Prompts and similarity, where a file tells them. PyLate calls two prompts prefixes."""
    if not model_dir.has(PROMPTS):
        return _Said({}, "", "")
    fields = Fields(model_dir.json(PROMPTS), PROMPTS)
    prefixes = {kind: fields.raw(f"{kind}_prefix", None) for kind in ("query", "document")}
    of_colbert = fields.raw("model_type", "") == "ColBERT" or any(prefixes.values())
    prompts = fields.raw("prompts", {})
    if isinstance(prompts, dict):
        prompts = {kind: text for kind, text in prefixes.items() if text} | prompts
    if not isinstance(prompts, dict) or not all(isinstance(each, str) for each in prompts.values()):
        raise fields.wrong("prompts", prompts, "an object of texts")
    default = fields.raw("default_prompt_name", "")
    if default and default not in prompts:
        raise fields.wrong("default_prompt_name", default, f"one of {', '.join(prompts) or 'none'}")
    measure = fields.choice("similarity_fn_name", SIMILARITIES | OF_TOKENS | {"": ""}, "")
    return _Said(prompts, str(default), measure, of_colbert)


def _max_tokens(model_dir: ModelDir) -> int:
    """The longest text, where a file tells; 0 where none does."""
    if not model_dir.has(SENTENCE_CONFIG):
        return 0
    fields = Fields(model_dir.json(SENTENCE_CONFIG), SENTENCE_CONFIG)
    return 0 if fields.raw("max_seq_length", None) is None else fields.integer("max_seq_length")
