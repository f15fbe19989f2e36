"""A sequence: the tokens of one request and how far they have come."""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field

from ingot.errors import IngotError
from ingot.runtime.output import FinishReason, Logprob
from ingot.runtime.params import SamplingParams
from ingot.runtime.sampling_state import SamplingState


@dataclass(slots=True, eq=False)
class Sequence:
    """The state of one request, owned by the engine.

    `token_ids` are the prompt and what was generated; `num_computed` of them have their keys and
    values in the cache (none after a preemption). `seed` and `key` name the request to
    the sampler's random generator.
    """

    sequence_id: int
    token_ids: list[int]
    params: SamplingParams
    max_len: int
    key: int = 0
    seed: int = 0
    num_prompt: int = 0
    num_computed: int = 0
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    cumulative_logprob: float = 0.0
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: IngotError | None = None
    sampling: SamplingState | None = None  # the sampler's own

    def __post_init__(self) -> None:
        self.num_prompt = len(self.token_ids)

    @property
    def num_remaining(self) -> int:
        """Tokens whose keys and values are still to be computed: 1 when it decodes."""
        return len(self.token_ids) - self.num_computed

    @property
    def num_generated(self) -> int:
        return len(self.token_ids) - self.num_prompt

    @property
    def generated_ids(self) -> Tokens[int]:
        return self.token_ids[self.num_prompt :]

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None or self.error is not None
