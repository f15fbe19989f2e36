"""Methods of vLLM's LLM that models here do not have. Calling one is an error with advice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from ingot.errors import UsageError

_GENERATES = "Models here generate, and embed() gives vectors."
_PERPLEXITY = "docs/coming_from.md has a recipe for perplexity, by prompt_logprobs."
_PROFILE = "`ingot bench` says where the time of a model goes."

REFUSED = {
    "reward": f"{_GENERATES} {_PERPLEXITY}",
    "get_metrics": "counters() has the figures of the engine.",
    "reset_prefix_cache": "Give prompts a cache_salt, or switch it off: "
    "llm.config = EngineConfig(prefix_cache=False).",
    "set_tokenizer": "The tokenizer is the model's own. Prompts may be token ids.",
    "start_profile": _PROFILE,
    "stop_profile": _PROFILE,
    "sleep": "close() frees all memory, and opening an artifact again takes milliseconds.",
    "wake_up": "Open the artifact again, which takes milliseconds.",
    "apply_model": "There is no PyTorch module: logits() has the logits of every position.",
    "collective_rpc": "A model runs in one process, on one machine.",
}


class Refusals:
    """Raises UsageError from the methods that `REFUSED` names."""


def _refusing(name: str, advice: str) -> Callable[..., NoReturn]:
    def method(self: object, *_: Any, **__: Any) -> NoReturn:
        raise UsageError(f"there is no {name}()", hint=advice)

    method.__name__, method.__doc__ = name, f"Not supported. {advice}"
    return method


for _name, _advice in REFUSED.items():
    setattr(Refusals, _name, _refusing(_name, _advice))
