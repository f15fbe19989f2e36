"""The family of a class of `transformers`: how its module is built and its tensors are named."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

from ingot.errors import IngotError, InternalError
from ingot.models.family import Family, Rows
from ingot.models.fields import Fields
from ingot.models.foreign.config import ForeignConfig, class_named, own_config

if TYPE_CHECKING:
    from torch import nn


@cache
def foreign_family(config: ForeignConfig) -> Family:
    """The tables of a class, from a module that it builds on the meta device."""
    from ingot.models.foreign.names import renaming

    model, rows = made(config, max_model_len=config.max_position_embeddings)
    try_out(model)
    return Family(
        name=config.family,
        architectures=(config.architecture,),
        parse=parse_fields,
        build=build,
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


def parse_fields(fields: Fields) -> NoReturn:
    """Such a config.json is read by `parse_foreign`."""
    raise InternalError("the config of another library's module is not made of fields")


def build(config: Any, *, max_model_len: int) -> nn.Module:
    """The plain module of a class."""
    module: nn.Module = made(config, max_model_len=max_model_len)[0]
    return module


def made(config: ForeignConfig, *, max_model_len: int) -> tuple[Any, Mapping[str, Rows]]:
    """The plain module, and where those parameters are that it does not read as they are stored."""
    from ingot.models.foreign.build import plain_module

    values = json.loads(config.text)
    kind = class_named(config.architecture, values)
    return plain_module(kind, own_config(kind, values), max_model_len=max_model_len)
