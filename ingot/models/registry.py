"""The known model families, which turn a model directory into a config and a module."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import metadata
from typing import TYPE_CHECKING, Any, TypeVar

from ingot.errors import (
    CompileError,
    ConfigError,
    ContradictionError,
    IngotError,
    UnsupportedModelError,
    UsageError,
)
from ingot.models import decoder_blueprint
from ingot.models.blueprint import Blueprint
from ingot.models.checkpoints.checkpoint_files import guess_dtype, shapes_of
from ingot.models.config import ModelConfig
from ingot.models.encoder_fields import MASKED, TEXTS, TOKENS, classifying
from ingot.models.families import BUILT_IN
from ingot.models.family import Build, Family
from ingot.models.fields import Fields
from ingot.models.file_names import GENERATION
from ingot.models.foreign.config import LIBRARY, WAY, AnyConfig, ForeignConfig, parse_foreign
from ingot.models.model_dir import ModelDir
from ingot.models.text_modules import with_modules

if TYPE_CHECKING:
    from torch import nn

Config = TypeVar("Config", ModelConfig, ForeignConfig)
OURS = "ingot"
LIBRARIES = (OURS, LIBRARY)
# What the names of classes end with that give rows of tokens, or scores of labels.
WHOLE_TEXTS = ("Model", MASKED, TEXTS, TOKENS)
NUM_NEAR = 3  # names that the error of an unknown architecture has
ENTRY_POINT_GROUP = "ingot.families"
_registered: dict[str, Family] = {family.name: family for family in BUILT_IN}
_by_hand: dict[str, Family] = {}  # those that `register` was called for
_plugins_loaded = False


def register(family: Family) -> None:
    """Adds a family for this process. Installed packages use the entry point group instead.

    Raises:
        UsageError: another family has its name or one of its architectures.
    """
    _add(family)
    _by_hand[family.name] = family


def registered() -> tuple[Family, ...]:
    """The families that this process has added by `register`."""
    return tuple(_by_hand.values())


def _add(family: Family) -> None:
    for other in _registered.values():
        shared = set(other.architectures) & set(family.architectures)
        if other is not family and (other.name == family.name or shared):
            raise UsageError(
                f"family {family.name} clashes with the known family {other.name}",
                hint="use another name, and architectures that no known family builds",
            )
    _registered[family.name] = family


def families() -> dict[str, Family]:
    """Every family by name: built in, registered, and from entry points.

    Raises:
        CompileError: a package that offers a family cannot be imported.
    """
    _load_plugins()
    return dict(_registered)


def _load_plugins() -> None:
    global _plugins_loaded
    if _plugins_loaded:
        return
    for point in metadata.entry_points(group=ENTRY_POINT_GROUP):
        try:
            family = point.load()
        except Exception as error:
            raise CompileError(
                f"the family {point.name} of {point.value} cannot be imported: {error!r}",
                hint="repair or uninstall the package that offers it",
            ) from error
        if not isinstance(family, Family):
            raise CompileError(
                f"the entry point {point.name} gives {type(family).__name__}, not a Family",
                hint=f"{ENTRY_POINT_GROUP} must name an object of ingot.models.family.Family",
            )
        _add(family)
    _plugins_loaded = True


def load_config(model_dir: ModelDir, library: str = OURS) -> AnyConfig:
    """Reads config.json, and the token ids of generation_config.json where there is one.

    `library` says whose module it is read for: that of a family, or that of `transformers`.

    Raises:
        ModelDirError: a missing or unreadable file.
        ConfigError: unknown keys, wrong types, contradictory values.
        UnsupportedModelError: no family builds the architecture.
        UsageError: a library that is none of LIBRARIES.
    """
    values = model_dir.config
    if library not in LIBRARIES:
        raise UsageError(f"library is {library!r}", hint=f"Supported: {', '.join(LIBRARIES)}.")
    if library == OURS:
        return with_other_files(parse_config(values), model_dir)
    return with_other_files(parse_foreign(values), model_dir)


def parse_config(values: dict[str, Any], ignored: list[str] | None = None) -> ModelConfig:
    """The canonical config of a parsed config.json; `ignored` gets the keys that change nothing."""
    family = find_family(values)
    fields = Fields(values, ignored=ignored)
    config = _parsed(family, fields)
    fields.finish()
    return config


def _parsed(family: Family, fields: Fields) -> ModelConfig:
    config: ModelConfig = family.parse(fields)
    return replace(config, family=family)


def with_other_files(config: Config, model_dir: ModelDir) -> Config:
    """A config with token ids of generation_config.json, the format of the weights, and what
    modules.json has behind the layers.

    Raises as `load_config` does.
    """
    if model_dir.has(GENERATION):
        config = _with_token_ids(config, Fields(model_dir.json(GENERATION), GENERATION))
    if not config.checkpoint_dtype:
        config = replace(config, checkpoint_dtype=guess_dtype(model_dir) or "float32")
    if isinstance(config, ModelConfig):
        config = with_modules(config, model_dir)
        if config.family.sized:
            config = config.family.sized(config, shapes_of(model_dir))
    return replace(config, quantization=method_of(model_dir))


def method_of(model_dir: ModelDir) -> str:
    """The quant_method of a model; "" where it has none, or none that can be read."""
    with suppress(ConfigError):
        if settings := model_dir.quantization:
            return str(settings.get("quant_method", ""))
    return ""


def _with_token_ids(config: Config, generation: Fields) -> Config:
    def merged(first: tuple[int, ...], key: str) -> tuple[int, ...]:
        return tuple(dict.fromkeys(first + generation.token_ids(key)))

    return replace(
        config,
        bos_token_ids=merged(config.bos_token_ids, "bos_token_id"),
        eos_token_ids=merged(config.eos_token_ids, "eos_token_id"),
    )


def build(config: AnyConfig, *, max_model_len: int) -> nn.Module:
    """The plain module on the meta device: (input_ids, positions) [1, T] -> logits [1, T, V], or
    what it makes of the whole text [1, 1, C].

    Args:
        config: from `load_config`.
        max_model_len: longest sequence it will run, which fixes the rotary frequencies.
    """
    if max_model_len < 1:
        raise UsageError(
            f"max_model_len is {max_model_len}", hint="give a length of at least one token"
        )
    import torch

    from ingot.models.blocks.decoder import CausalLM
    from ingot.models.blocks.encoder import Encoder, SparseEncoder

    head = config.head if isinstance(config, ModelConfig) else None
    usual = CausalLM if head is None else SparseEncoder if head.log1ps else Encoder
    build: Build = config.family.build or usual
    with torch.device("meta"), torch.no_grad():
        return build(config, max_model_len=max_model_len).eval()


def blueprint(config: AnyConfig) -> Blueprint:
    """Blueprint of a config's module. A family with a `build` of its own needs torch."""
    if isinstance(config, ModelConfig) and config.family.build is None:
        return decoder_blueprint.model(config)
    from ingot.models.blocks.block import blueprint_of

    return blueprint_of(build(config, max_model_len=config.max_position_embeddings))


def find_family(values: dict[str, Any]) -> Family:
    """The family that builds `architectures[0]` of a config.json.

    Raises:
        ConfigError: it names no architecture.
        UnsupportedModelError: no family builds the architecture.
    """
    family = known_family(values)
    if family:
        return family
    near = nearest_family(values)
    error = unknown_architecture(values)
    raise UnsupportedModelError(
        error.found,
        hint=f"nearest: {near.family.architectures[0]}, which differs in "
        f"{', '.join(near.differing) if near.differing else 'no key of config.json'}; {error.hint}",
    )


def known_family(values: dict[str, Any]) -> Family | None:
    """Finds a family like `find_family`, but None for an architecture that no family builds."""
    names = values.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise ConfigError(
            f"config.json has architectures = {names!r}",
            hint='it must be a list with one class name, such as ["LlamaForCausalLM"]',
        )
    for known in (_registered.values, lambda: families().values()):
        for family in known():
            if names[0] in family.architectures:
                return family
    return _classifying(names[0])


def _classifying(architecture: str) -> Family | None:
    """The family of a decoder with a head for labels; None where no family builds the decoder."""
    name, _, task = architecture.rpartition("For")
    decoder = f"{name}ForCausalLM"
    family = next((f for f in _registered.values() if decoder in f.architectures), None)
    if f"For{task}" not in (TEXTS, TOKENS) or family is None or family.build:
        return None
    return classifying(family, architecture)


def unknown_architecture(values: dict[str, Any]) -> UnsupportedModelError:
    """The error of an architecture that no family builds."""
    name, known = values["architectures"][0], supported_architectures()
    near = difflib.get_close_matches(name, known, NUM_NEAR, cutoff=0)
    way = f"ingot compile {WAY} may take it; "
    if name.endswith(WHOLE_TEXTS):
        way = f"{WAY} takes models that generate alone, so it needs a family: docs/add_a_model.md; "
    return UnsupportedModelError(
        f"no family builds the architecture {name}",
        hint=f"{way}of the {len(known)} that are supported, names like it have {', '.join(near)}; "
        "all: ingot explain --supported",
    )


def supported_architectures() -> tuple[str, ...]:
    """Every class name that some family builds."""
    return tuple(name for family in families().values() for name in family.architectures)


@dataclass(frozen=True, slots=True)
class Nearest:
    """The family that is nearest to an unknown architecture.

    Attributes:
        differing: keys that it does not know, then those that it cannot take as they are.
        absent: keys that it reads and config.json lacks, so that it would take defaults of its own.
    """

    family: Family
    differing: tuple[str, ...]
    absent: tuple[str, ...]


def nearest_family(values: dict[str, Any]) -> Nearest:
    """The family with the fewest differing keys, then the nearest name."""

    def rank(near: Nearest) -> tuple[int, float]:
        name = str((values.get("architectures") or [""])[0])
        likeness = max(
            difflib.SequenceMatcher(None, name, known).ratio()
            for known in near.family.architectures
        )
        return len(near.differing), -likeness

    return min((_compared(family, values) for family in families().values()), key=rank)


def differing_fields(family: Family, values: dict[str, Any]) -> tuple[str, ...]:
    """Keys of a config.json that a family does not know, or cannot take as they are."""
    return _compared(family, values).differing


def _compared(family: Family, values: dict[str, Any]) -> Nearest:
    read = read_config(family, values)
    wrong = tuple(fault.found.removeprefix("config.json has ") for fault in read.wrong)
    return Nearest(family, read.fields.unread() + wrong, read.fields.absent())


@dataclass(frozen=True, slots=True)
class ConfigReading:
    """Result of a family's reading of a config.json, to its end whatever is wrong with it.

    Attributes:
        config: what the sound values make, even beside keys that are refused or not known; None
            where a value is missing or wrong.
        wrong: the errors of values that are wrong or missing.
        fields: the file, which tells the keys that the family does not know.
    """

    config: ModelConfig | None
    wrong: Sequence[IngotError]
    fields: Fields

    @property
    def faults(self) -> tuple[IngotError, ...]:
        """The errors of values, and that of unknown keys."""
        unknown = self.fields.unknown()
        return (*self.wrong, unknown) if unknown else tuple(self.wrong)


def read_config(family: Family, values: dict[str, Any]) -> ConfigReading:
    """Reads a config.json as `parse_config` does, but goes on after a fault."""
    wrong: list[IngotError] = []
    fields = Fields(values, on_fault=wrong.append)
    config = None
    with fields.noting():
        try:
            config = _parsed(family, fields)
        except IngotError as error:
            if not isinstance(error, ContradictionError):
                fields.read_all()  # the family went no further, so nothing tells what it knows
            raise
    return ConfigReading(config if fields.sound() else None, wrong, fields)
