"""The plain module of a class of `transformers`: on the meta device, without cache and mask.

`renaming` says which tensor of a checkpoint is which of its parameters.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from ingot.errors import UnsupportedModelError
from ingot.models.blocks.constants import register_constant
from ingot.models.family import Rows
from ingot.models.foreign.attention import NAME, RefusedCall, register

# Buffers that older exporters wrote; their values follow from the config.
BUFFERS = (r"rotary_emb\.inv_freq$", r"(^|\.)position_ids$")


def plain_module(
    made: type[Any], config: Any, *, max_model_len: int
) -> tuple[Any, dict[str, Rows]]:
    """The module (input_ids, positions) [1, T] -> logits [1, T, V], its parameters on meta; and
    those that are not read as a checkpoint stores them.

    Args:
        made: the class; config: its own config, which becomes this module's.
        max_model_len: longest sequence it will run. Frequencies that depend on a length are those
            of this one.
    """
    model = bare_module(made, config, max_model_len)
    rows = own_rows(model)
    model.forward = MethodType(forward, model)
    return model.requires_grad_(False), rows


def bare_module(made: type[Any], config: Any, max_model_len: int, **given: Any) -> Any:
    """The class's own module, whose attention and masks are those of `attention`; `given` are
    further arguments of the class."""
    register()
    with torch.device("meta"), torch.no_grad():
        eager = {"dtype": torch.float32, "attn_implementation": "eager"}
        model = made._from_config(config, **eager, **given).eval()
    # Modules that were made for eager attention look it up at each call, some in their own config.
    for part in {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}.values():
        part._attn_implementation, part._experts_implementation = NAME, NAME
    set_buffers(model, max_model_len)
    return model


def forward(model: nn.Module, input_ids: Tensor, positions: Tensor) -> Tensor:
    """The class's own forward. Positions are left to the class: not all of them begin at 0, and
    `canonicalize_positions` finds those that do."""
    logits: Tensor = called(model, input_ids).logits
    return logits.float()


def called(model: nn.Module, input_ids: Tensor, **more: Tensor) -> Any:
    """What the class's own forward gives, for those of the arguments that it has."""
    own = type(model).forward
    # A mask that is given is not looked for in positions, where values would decide.
    given = {"attention_mask": torch.ones_like(input_ids), "use_cache": False, **more}
    known = inspect.signature(own).parameters
    try:
        return own(model, input_ids, **{name: x for name, x in given.items() if name in known})
    except RefusedCall as error:
        paths = {id(module): path for path, module in model.named_modules()}
        where = paths.get(id(error.module)) or "the model itself"
        raise UnsupportedModelError(
            f"no op stands for {error.what}, at {where}",
            hint=f"{type(model).__name__} of transformers cannot be compiled",
        ) from error


def set_buffers(model: Any, max_model_len: int) -> None:
    """Gives the buffers that no checkpoint holds the values that the library computes."""
    names = [name for name, _ in model.named_non_persistent_buffers()]
    owners = {
        name.rpartition(".")[0]: model.get_submodule(name.rpartition(".")[0]) for name in names
    }
    for owner in owners.values():
        for name, buffer in owner.named_buffers(recurse=False):
            owner._buffers[name] = torch.empty_like(buffer, device="cpu")
    with torch.device("cpu"):
        for path, owner in owners.items():
            initializer(model, path)._init_weights(owner)
            fix_frequencies(owner, max_model_len)
    for owner in owners.values():
        for name, buffer in list(owner.named_buffers(recurse=False)):
            if buffer.is_floating_point():
                register_constant(owner, name, buffer.float())
            else:
                owner._buffers[name] = buffer.to("meta")


def initializer(model: Any, path: str) -> Any:
    """The innermost of the library's models that a module is in, which knows its first values."""
    from transformers import PreTrainedModel

    names = path.split(".") if path else []
    within = [model.get_submodule(".".join(names[:count])) for count in range(len(names) + 1)]
    return next(part for part in reversed(within) if isinstance(part, PreTrainedModel))


def fix_frequencies(module: Any, max_model_len: int) -> None:
    """Computes frequencies that depend on a length for the longest one, and once."""
    kinds = getattr(module, "rope_type", None)
    for layer, kind in kinds.items() if isinstance(kinds, dict) else ((None, kinds),):
        if kind is None or not ("dynamic" in kind or kind == "longrope"):
            continue
        last = torch.tensor([[max_model_len - 1]])
        module(torch.zeros(1), last, **({} if layer is None else {"layer_type": layer}))
        if layer is None:
            module.rope_type = "default"
        else:
            module.rope_type = {**module.rope_type, layer: "default"}


def own_rows(model: nn.Module) -> dict[str, Rows]:
    """Reads parameters as the passes want them, and tells where they are in the checkpoint.

    A table of positions may begin with rows that no position reads, `offset` of them. A `Conv1D` is
    a linear whose weight is stored transposed. Buffers that a checkpoint holds are parameters. Of a
    tensor with two names the checkpoint has the one that the class calls the original.
    """
    from transformers.pytorch_utils import Conv1D

    own = dict(model.named_parameters())
    tied: dict[str, str] = model.all_tied_weights_keys  # type: ignore[assignment]
    moved = {one: original for one, original in tied.items() if one in own and original not in own}
    rows = {copy: Rows(original) for copy, original in moved.items()}
    for path, module in list(model.named_modules()):
        offset = getattr(module, "offset", None)
        if isinstance(module, nn.Embedding) and isinstance(offset, int) and offset > 0:
            module.weight = nn.Parameter(module.weight[offset:].detach())
            module.offset = 0  # type: ignore[assignment]
            rows[f"{path}.weight"] = Rows(f"{path}.weight", skip=offset)
        elif isinstance(module, Conv1D):
            model.set_submodule(path, nn.Linear(module.nx, module.nf, device="meta"))
            rows[f"{path}.weight"] = Rows(f"{path}.weight", transposed=True)
        for name, buffer in list(module.named_buffers(recurse=False)):
            if name not in module._non_persistent_buffers_set and buffer.is_floating_point():
                del module._buffers[name]
                if not buffer.dim():
                    what = f"{type(module).__name__} with a tensor of one number, {name}"
                    raise UnsupportedModelError(f"no op stands for {what}, at {path}")
                module.register_parameter(name, nn.Parameter(buffer.to("meta")))
    return rows


def renaming(model: Any, state: Mapping[str, Any] | None = None) -> Callable[[str], str]:
    """Gives the parameter of a model that the tensor of that name in a checkpoint is.

    The name is empty for a tensor that `transformers` leaves out. `state` has the names of all its
    parameters, by default those that it has. What is returned raises UnsupportedModelError for a
    tensor that it computes parameters of.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, rename_source_key

    transforms = get_model_conversion_mapping(model)
    converters = [each for each in transforms if isinstance(each, WeightConverter)]
    renamings = [each for each in transforms if not isinstance(each, WeightConverter)]
    left_out = [*(model._keys_to_ignore_on_load_unexpected or ()), *BUFFERS]
    state = model.state_dict() if state is None else state

    def renamed(name: str) -> str:
        new, pattern = rename_source_key(
            name, renamings, converters, model.base_model_prefix, state
        )
        if new not in state and any(re.search(each, new) for each in left_out):
            return ""
        if pattern is not None:
            converter = next(each for each in converters if pattern in each.source_patterns)
            steps = " and ".join(type(step).__name__ for step in converter.operations)
            raise UnsupportedModelError(
                f"transformers computes {new} of other tensors, such as {name}, by {steps}",
                hint=f"{type(model).__name__} needs a family of its own: docs/add_a_model.md",
            )
        return str(new)

    return renamed
