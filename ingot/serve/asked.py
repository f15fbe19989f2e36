"""`Asked`: what a request takes of its model, as far as it must be known to let it in."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ingot.serve.engine import ModelFacts


class Asked(Struct, frozen=True, kw_only=True):
    """A request of `num_jobs` prompts for `num_sequences` seats, and for tokens: those of its
    prompts and its answers.

    `model` is the name that the model is registered by, and `key` that of the API key, if any.
    `task` is what the model does for it: "generate", or the task of its pooler. `max_tokens` is
    what the client asked for a sequence. `prompts` are for the log, if that is to have them; None
    is one of tokens alone.
    """

    model: str
    key: str = ""
    task: str = "generate"
    num_jobs: int = 1
    num_sequences: int = 1
    num_prompt_tokens: int = 0
    num_tokens: int = 0
    max_tokens: int | None = None
    priority: int = 0
    facts: ModelFacts | None = None
    prompts: Sequence[str | None] = ()
