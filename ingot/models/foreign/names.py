"""Which tensor of a checkpoint is which parameter, by the renamings that `transformers` makes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ingot.errors import UnsupportedModelError

# Buffers that older exporters wrote; their values follow from the config.
BUFFERS = (r"rotary_emb\.inv_freq$", r"(^|\.)position_ids$")


def renaming(model: Any) -> Callable[[str], str]:
    """Gives the parameter of a model that the tensor of that name in a checkpoint is.

    The name is empty for a tensor that `transformers` leaves out. What is returned raises
    UnsupportedModelError for a tensor that it computes parameters of.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, rename_source_key

    transforms = get_model_conversion_mapping(model)
    converters = [each for each in transforms if isinstance(each, WeightConverter)]
    renamings = [each for each in transforms if not isinstance(each, WeightConverter)]
    left_out = [*(model._keys_to_ignore_on_load_unexpected or ()), *BUFFERS]
    state = model.state_dict()

    def renamed(name: str) -> str:
        new, converter = rename_source_key(
            name, renamings, converters, model.base_model_prefix, state
        )
        if new not in state and any(re.search(pattern, new) for pattern in left_out):
            return ""
        if converter is not None:
            raise UnsupportedModelError(
                f"transformers computes {new} of several tensors, such as {name}",
                hint=f"{type(model).__name__} needs a family of its own: docs/add_a_model.md",
            )
        return str(new)

    return renamed
