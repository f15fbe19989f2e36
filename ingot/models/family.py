"""Model family: how its configs are read, its modules built and its checkpoints loaded.

A `ModelConfig` has its family in it, so configs are `Any` here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from ingot.errors import InternalError
from ingot.models.fields import Fields
from ingot.models.weight_rules import Decays, Entry, Join, Products, Rows, Stack, Sums, Totals

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "USUAL",
    "Build",
    "Decays",
    "Family",
    "Join",
    "Products",
    "Rows",
    "Stack",
    "Sums",
    "Totals",
    "Weights",
    "parse_nothing",
]

# Of several entries in a tuple the first counts of whose tensors the checkpoint has one.
Weights = Mapping[str, Entry | tuple[Entry, ...]]


class Build(Protocol):
    """Builds the plain module of a config; called with the meta device as the default."""

    def __call__(self, config: Any, *, max_model_len: int) -> nn.Module: ...


# Written by older exporters; its values follow from the config.
_ROTARY_BUFFERS = ("model.layers.{i}.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Family:
    """A model family.

    A template is a name in which `{i}` stands for a number and any other word in braces for any
    text; the same word stands for the same text everywhere.

    Attributes:
        name: short name, such as "qwen3".
        architectures: the class names in `config.json` that it builds.
        parse: reads `config.json` into a `ModelConfig`, which gets the family afterwards; keys that
            it does not read are an error then.
        build: the plain module, with the meta device as the default. None is the usual decoder,
            `CausalLM`, whose parameters `ingot.models.blueprint` tells without torch.
        weights: parameter name or template -> source tensor (a name, a template, or a rule of
            `weight_rules`, or several of these); a parameter that is not listed is read from the
            tensor of its own name. It is a function of the config where rules depend on sizes.
        spellings: templates of names that some checkpoints have -> the name that stands for it in
            the other tables.
        respelled: the same as a function of the name, for tables that no templates can say; an
            empty name leaves the tensor out.
        unused: names or templates of source tensors that may be present and are not read;
            `{beyond}` stands for the numbers of the layers that `mtp_layers` of the config counts.
        sized: a config with the sizes that the shapes of the checkpoint's tensors tell, for keys of
            config.json that may be missing or wrong.
        tied: copy -> original: source tensors that a model with tie_embeddings may store although
            they repeat another one. The two are compared when the original is read.
    """

    name: str
    architectures: tuple[str, ...]
    parse: Callable[[Fields], Any]
    build: Build | None = None
    weights: Weights | Callable[[Any], Weights] = field(default_factory=dict)
    spellings: Mapping[str, str] = field(default_factory=dict)
    respelled: Callable[[str], str] | None = None
    unused: tuple[str, ...] = _ROTARY_BUFFERS
    sized: Callable[[Any, Mapping[str, tuple[int, ...]]], Any] | None = None
    tied: Mapping[str, str] = field(
        default_factory=lambda: {"lm_head.weight": "model.embed_tokens.weight"}
    )

    def weights_of(self, config: Any) -> Weights:
        """The table of weights for a config."""
        return self.weights(config) if callable(self.weights) else self.weights


def parse_nothing(fields: Fields) -> NoReturn:
    """Stands for `parse` where no config.json is read by fields."""
    raise InternalError("no config.json is read for this family")


# That of a config which no config.json has made: the usual decoder, by its own names.
USUAL = Family(name="decoder", architectures=(), parse=parse_nothing)
