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
