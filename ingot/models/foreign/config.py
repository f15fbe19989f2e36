"""Config and family of a model whose module `transformers` writes.

Only the family, which is asked of the module itself, needs torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from ingot.errors import ConfigError, IngotError, UnsupportedModelError, UsageError, describe
from ingot.models.config import ModelConfig
from ingot.models.encoder_fields import TEXTS, TOKENS
from ingot.models.family import Family, Rows, parse_nothing
from ingot.models.head_config import HeadConfig, Pooling
from ingot.version import DISTRIBUTION

if TYPE_CHECKING:
    from torch import nn
    from transformers import PretrainedConfig

    from ingot.models.foreign.encoder import PlainEncoder
    from ingot.models.rope import RopeConfig

LIBRARY = "transformers"  # the name of the option's value, and of the family of such models
UNBOUNDED = 4096  # the longest sequence of a model whose config says none
WAY = f"--from {LIBRARY}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignConfig:
    """A model whose module `transformers` writes, as far as a compile needs to know it.

    Attributes:
        architecture: the class, by its name in `transformers`.
        windows: the window of every layer as config.json has it, 0 for none. Masks say which there
            are; these only choose lengths of prompts.
        text: all of config.json, of which `transformers` makes its own config.
        head: of a model of whole texts, what is made of one; None of a model that generates.
        built: the class of such a model that is built: the architecture's, or its base class.
        row_size: width of the rows that it gives; token_types: as in ModelConfig.
    """

    architecture: str
    vocab_size: int
    windows: tuple[int, ...]
    max_position_embeddings: int
    bos_token_ids: tuple[int, ...]
    eos_token_ids: tuple[int, ...]
    checkpoint_dtype: str
    quantization: str = ""
    mtp_layers: int = 0
    tie_embeddings: bool = True  # the class says which tensors are one
    text: str
    head: HeadConfig | None = None
    built: str = ""
    row_size: int = 0
    token_types: int = 1

    @property
    def ropes(self) -> tuple[RopeConfig, ...]:
        """None that is known: the class computes its own frequencies."""
        return ()

    @property
    def family(self) -> Family:
        """Family that builds its module and names its tensors; needs torch."""
        return foreign_family(self)

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.windows)


AnyConfig = ModelConfig | ForeignConfig


def parse_foreign(values: dict[str, Any]) -> ForeignConfig:
    """Parses the config.json of a model that `transformers` has a class for.

    Raises:
        ConfigError: it names no class, or the class takes no such config.
        UnsupportedModelError: `transformers` has no such class, or it is no model of text.
        UsageError: `transformers` is not installed.
    """
    text = json.dumps(values, sort_keys=True)
    name = architecture_of(values)
    made = class_named(name, values)
    whole = own_config(made, values)
    encodes = not generates(made)
    config = whole.get_text_config() if encodes else whole.get_text_config(decoder=True)
    if not hasattr(config, "vocab_size"):
        raise UnsupportedModelError(
            f"{name} of transformers reads no text: its config has no vocabulary",
            hint=f"{WAY} takes models of text; docs/transformers_classes.md and docs/embeddings.md "
            "list the classes that agree.",
        )
    layers = getattr(config, "num_hidden_layers", 0)  # some have several stacks, each with its own
    parsed = ForeignConfig(
        architecture=name,
        vocab_size=int(config.vocab_size),
        windows=windows_of(config, layers),
        max_position_embeddings=int(getattr(config, "max_position_embeddings", 0) or UNBOUNDED),
        bos_token_ids=ids_of(getattr(config, "bos_token_id", None)),
        eos_token_ids=ids_of(getattr(config, "eos_token_id", None)),
        checkpoint_dtype=str(getattr(config, "dtype", None) or "").removeprefix("torch."),
        text=text,
    )
    return with_head(parsed, made, whole) if encodes else parsed


def generates(made: type[Any]) -> bool:
    """Returns whether a class generates text."""
    from transformers import GenerationMixin

    return issubclass(made, GenerationMixin)


def with_head(parsed: ForeignConfig, made: type[Any], config: PretrainedConfig) -> ForeignConfig:
    """The config of a model of whole texts: with its head, and what its embeddings know.

    Raises UnsupportedModelError for a class that reads something else than a text.
    """
    name = parsed.architecture
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModelError(
            f"{name} of transformers reads a text by an encoder and by a decoder",
            hint=f"{WAY} takes models of one of the two.",
        )
    scores = name.endswith((TEXTS, TOKENS))
    base = base_class(made, config)
    if base is None and not scores:
        raise UnsupportedModelError(
            f"{name} of transformers has no base class that gives rows of texts",
            hint=f"{WAY} takes models that generate, models of whole texts such as ElectraModel, "
            f"and those with {TEXTS} or {TOKENS}. docs/embeddings.md lists what families build.",
        )
    built = made if scores or base is None else base
    head = HeadConfig(pooling=("mean",))
    if scores:
        pooling: tuple[Pooling, ...] = ("first",) if name.endswith(TEXTS) else ()
        head = HeadConfig(pooling=pooling, labels=labels_of(config))
    parsed = replace(parsed, head=head, built=built.__name__)
    body = encoder_of(parsed, parsed.max_position_embeddings)
    from ingot.models.foreign.encoder import row_size_of

    longest = body.longest or parsed.max_position_embeddings
    return replace(
        parsed,
        row_size=row_size_of(body.body) or int(getattr(config, "hidden_size", 0)),
        token_types=body.types,
        max_position_embeddings=min(longest, parsed.max_position_embeddings),
    )


def base_class(made: type[Any], config: PretrainedConfig) -> type[Any] | None:
    """The class that gives the rows which a class has its head upon; itself where it has none."""
    from transformers import AutoModel

    if made.__name__.endswith("Model"):
        return made
    known = AutoModel._model_mapping
    found = known.get(type(config), None)
    found = found[0] if isinstance(found, tuple) else found
    return found if found is None or made.__name__.startswith(base_name(found)) else None


def base_name(made: type[Any]) -> str:
    return made.__name__.removesuffix("Model")


def labels_of(config: PretrainedConfig) -> tuple[str, ...]:
    """The names of the labels, in the order of their numbers."""
    return tuple(str(config.id2label[index]) for index in sorted(config.id2label))


def architecture_of(values: dict[str, Any]) -> str:
    """The class that a config.json names. Raises ConfigError."""
    names = values.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise ConfigError(
            f"config.json has architectures = {names!r}",
            hint='it must be a list with one class name, such as ["LlamaForCausalLM"]',
        )
    return names[0]


def class_named(name: str, values: dict[str, Any]) -> type[Any]:
    """The class of `transformers` that has this name. Raises UnsupportedModelError, UsageError."""
    with installed():
        import transformers
        from transformers import PreTrainedModel
    made = getattr(transformers, name, None)
    if not isinstance(made, type) or not issubclass(made, PreTrainedModel):
        own = " and config.json brings code of its own (auto_map)" if "auto_map" in values else ""
        raise UnsupportedModelError(
            f"transformers {transformers.__version__} has no model class {name}{own}",
            hint="Code of a model directory is never run. A newer transformers may have the class; "
            "otherwise write a family: docs/add_a_model.md.",
        )
    return made


def own_config(made: type[Any], values: dict[str, Any]) -> PretrainedConfig:
    """The config that `transformers` makes of config.json for a class. Raises ConfigError."""
    try:
        config: PretrainedConfig = made.config_class.from_dict(with_floats(values))
        return config
    except Exception as error:
        raise ConfigError(
            f"{made.config_class.__name__} of transformers refuses config.json: {describe(error)}",
            hint="fetch config.json again; its keys are those of the model's class",
        ) from error


def with_floats(value: Any) -> Any:
    """Values of a config.json with the floats that JSON has no number for.

    `transformers` writes infinity as {"__float__": "Infinity"}.
    """
    if isinstance(value, dict):
        name = value.get("__float__") if len(value) == 1 else None
        if name in ("Infinity", "-Infinity", "NaN"):
            return float(name)
        return {key: with_floats(each) for key, each in value.items()}
    return [with_floats(each) for each in value] if isinstance(value, list) else value


def windows_of(config: PretrainedConfig, layers: int) -> tuple[int, ...]:
    """The window of every layer, as far as the config says it in the usual words."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * layers
    slides = [kind == "sliding_attention" for kind in kinds][:layers]
    return tuple(int(window) if window and each else 0 for each in slides)


def ids_of(value: int | list[int] | None) -> tuple[int, ...]:
    return () if value is None else tuple(value) if isinstance(value, list) else (value,)


@contextmanager
def installed() -> Iterator[None]:
    """Imports `transformers` inside. Raises UsageError where it cannot be."""
    try:
        yield
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError) and error.name == LIBRARY
        reason = (str(error).strip().splitlines() or [""])[0]
        raise UsageError(
            f"{LIBRARY} {'is not installed' if absent else f'cannot be imported: {reason}'}",
            hint=f"{WAY} needs it: pip install '{DISTRIBUTION}[hf]'",
        ) from error


@cache
def foreign_family(config: ForeignConfig) -> Family:
    """The tables of a class, from a module that it builds on the meta device."""
    if config.head is not None:
        return encoder_family(config)
    from ingot.models.foreign.build import renaming

    model, rows = made(config, max_model_len=config.max_position_embeddings)
    try_out(model)
    return Family(
        name=LIBRARY,
        architectures=(config.architecture,),
        parse=parse_nothing,
        build=build_foreign,
        weights=rows,
        respelled=renaming(model),
        unused=(),
        tied=model.all_tied_weights_keys,
    )


def try_out(model: nn.Module) -> None:
    """Runs a module on the meta device. Raises UnsupportedModelError for what no op stands for."""
    import torch

    ids = torch.zeros(1, 3, dtype=torch.int64, device="meta")
    with torch.no_grad():
        try:
            model(ids, ids)
        except IngotError:
            raise
        except Exception:  # of whatever sort: exporting the module tells what is wrong with it
            return


def encoder_family(config: ForeignConfig) -> Family:
    """The tables of a class that reads whole texts."""
    from ingot.models.foreign.encoder import BODY

    plain = encoder_of(config, config.max_position_embeddings)
    rows = {f"{BODY}.{name}": entry for name, entry in plain.rows.items()}
    return Family(
        name=LIBRARY,
        architectures=(config.architecture,),
        parse=parse_nothing,
        build=build_encoder,
        weights={**rows, f"{BODY}.{{rest}}": "{rest}"},
        respelled=plain.renamed,
        unused=(),
        tied={},
    )


def build_encoder(config: Any, *, max_model_len: int) -> nn.Module:
    """The plain module of a class that reads whole texts, with what follows its rows."""
    from ingot.models.foreign.encoder import TextModel

    return TextModel(encoder_of(config, max_model_len).body, config.head, config.row_size)


def encoder_of(config: ForeignConfig, max_model_len: int) -> PlainEncoder:
    """The module of a class that reads whole texts, and what its tensors say."""
    from ingot.models.foreign.encoder import plain_encoder

    values = json.loads(config.text)
    kind = class_named(config.built, values)
    own = own_config(class_named(config.architecture, values), values)
    headless = config.built != config.architecture
    return plain_encoder(kind, own, max_model_len=max_model_len, headless=headless)


def build_foreign(config: Any, *, max_model_len: int) -> nn.Module:
    """The plain module of a class."""
    module: nn.Module = made(config, max_model_len=max_model_len)[0]
    return module


def made(config: ForeignConfig, *, max_model_len: int) -> tuple[Any, Mapping[str, Rows]]:
    """The plain module, and where those parameters are that it does not read as they are stored."""
    from ingot.models.foreign.build import plain_module

    values = json.loads(config.text)
    kind = class_named(config.architecture, values)
    return plain_module(kind, own_config(kind, values), max_model_len=max_model_len)
