"""Config and family of a model whose module `transformers` writes.

Only the family, which is asked of the module itself, needs torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from ingot.errors import ConfigError, IngotError, UnsupportedModelError, UsageError, describe
from ingot.models.config import ModelConfig
from ingot.models.family import Family, Rows, parse_nothing
from ingot.version import DISTRIBUTION

if TYPE_CHECKING:
    from torch import nn
    from transformers import PretrainedConfig

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
        """Number of decoder layers."""
        return len(self.windows)


AnyConfig = ModelConfig | ForeignConfig


def parse_foreign(values: dict[str, Any]) -> ForeignConfig:
    """Parses the config.json of a model that `transformers` has a class for.

    Raises:
        ConfigError: it names no class, or the class takes no such config.
        UnsupportedModelError: `transformers` has no such class, or it is no language model.
        UsageError: `transformers` is not installed.
    """
    text = json.dumps(values, sort_keys=True)
    name = architecture_of(values)
    made = class_named(name, values)
    config = own_config(made, values).get_text_config(decoder=True)
    layers = getattr(config, "num_hidden_layers", 0)  # some have several stacks, each with its own
    return ForeignConfig(
        architecture=name,
        vocab_size=int(config.vocab_size),
        windows=windows_of(config, layers),
        max_position_embeddings=int(getattr(config, "max_position_embeddings", 0) or UNBOUNDED),
        bos_token_ids=ids_of(getattr(config, "bos_token_id", None)),
        eos_token_ids=ids_of(getattr(config, "eos_token_id", None)),
        checkpoint_dtype=str(getattr(config, "dtype", None) or "").removeprefix("torch."),
        text=text,
    )


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
        from transformers import GenerationMixin, PreTrainedModel
    made = getattr(transformers, name, None)
    if not isinstance(made, type) or not issubclass(made, PreTrainedModel):
        own = " and config.json brings code of its own (auto_map)" if "auto_map" in values else ""
        raise UnsupportedModelError(
            f"transformers {transformers.__version__} has no model class {name}{own}",
            hint="Code of a model directory is never run. A newer transformers may have the class; "
            "otherwise write a family: docs/add_a_model.md.",
        )
    if not issubclass(made, GenerationMixin):
        raise UnsupportedModelError(
            f"{name} of transformers is no model that generates text",
            hint=f"{WAY} takes models that generate, such as LlamaForCausalLM. Models of whole "
            "texts are built by families alone: docs/embeddings.md lists them, and "
            "docs/add_a_model.md tells how to write one.",
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
