"""vLLM's `speculative_config`: what it asks for, as switches of the engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ingot.errors import UsageError

_EXAMPLE = '{"method": "ngram", "num_speculative_tokens": 5}'
_LOOKUP = ("prompt_lookup_max", "prompt_lookup_min")
_KNOWN = ("method", "model", "num_speculative_tokens", *_LOOKUP)


def read_speculative_config(given: object) -> dict[str, Any]:
    """Fields of `EngineConfig`. Raises UsageError for what is not supported.

    As in vLLM, one of `prompt_lookup_max` and `prompt_lookup_min` alone stands for both, and
    `model` may name the method.
    """
    if not isinstance(given, Mapping):
        raise UsageError(
            f"speculative_config is {given!r:.80}", hint=f"Give a dict, such as {_EXAMPLE}."
        )
    for name in given:
        if name not in _KNOWN:
            raise UsageError(
                f"speculative_config has {name!r:.80}", hint=f"Supported: {', '.join(_KNOWN)}."
            )
    values = {name: value for name, value in given.items() if value is not None}
    method, model = values.pop("method", None), values.pop("model", None)
    wanted = method or str(model or "").strip("[]")
    if wanted != "ngram" or model not in (None, "ngram", "[ngram]"):
        raise UsageError(
            f"speculative_config has method {method!r:.80} and model {model!r:.80}",
            hint=f"Supported is the method 'ngram', without a model: {_EXAMPLE}.",
        )
    bounds = [values[name] for name in _LOOKUP if name in values]
    if len(bounds) == 1:
        values |= dict.fromkeys(_LOOKUP, bounds[0])
    return {"speculative": "ngram", **values}
