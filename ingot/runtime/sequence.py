"""A sequence: the tokens of one completion and how far they have come. Chunks are parts of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ingot.errors import IngotError
from ingot.runtime.metrics import Times
from ingot.runtime.output import FinishReason, Logprob
from ingot.runtime.params import SamplingParams
from ingot.runtime.prompt_lookup import PromptLookup
from ingot.runtime.sampling_state import SamplingState


@dataclass(slots=True, eq=False)
class Sequence:
    """The state of one completion, owned by the engine.

    `token_ids` are the prompt and what was generated. A step that is under way counts as done:
    `num_computed` tokens have their keys and values in the cache or will have them after it (none
    after a preemption), and `num_pending` counts the tokens that are being drawn: none, one, or
    two while the device has been given two steps.

    `rank` orders the sequences, the smallest first. `salt` keeps prefixes apart: only sequences
    of the same salt share cached pages. `seed` and `key` name the sequence to the sampler's
    generator. It is completion `index` of its request; `siblings` are those that wait for the
    logits of its prompt, and each has it as `parent` until then. `lookup` guesses its tokens.
    """

    sequence_id: int
    token_ids: list[int]
    params: SamplingParams
    max_len: int
    seed: int = 0
    key: int = 0
    index: int = 0
    rank: tuple[int, int] = (0, 0)
    salt: bytes = b""
    stop_ids: frozenset[int] = frozenset()
    num_prompt: int = 0
    num_computed: int = 0
    num_pending: int = 0
    num_cached: int = 0
    num_preemptions: int = 0
    is_running: bool = False
    parent: Sequence | None = None
    siblings: list[Sequence] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    cumulative_logprob: float = 0.0
    prompt_logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: IngotError | None = None
    times: Times = field(default_factory=Times)
    lookup: PromptLookup | None = None
    sampling: SamplingState = field(init=False)

    def __post_init__(self) -> None:
        self.num_prompt = len(self.token_ids)
        self.sampling = SamplingState(self.params, self.stop_ids)

    @property
    def length(self) -> int:
        """The number of tokens, including those that are being drawn."""
        return len(self.token_ids) + self.num_pending

    @property
    def num_remaining(self) -> int:
        """Tokens whose keys and values have yet to be computed; 1 when it decodes."""
        return self.length - self.num_computed

    @property
    def num_generated(self) -> int:
        return len(self.token_ids) - self.num_prompt

    @property
    def prompt_ids(self) -> list[int]:
        return self.token_ids[: self.num_prompt]

    @property
    def generated_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt :]

    @property
    def num_unscored(self) -> int:
        """Prompt tokens whose log-probabilities were asked for and are still missing."""
        if self.params.prompt_logprobs is None:
            return 0
        return self.num_prompt - 1 - len(self.prompt_logprobs)

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None or self.error is not None


@dataclass(slots=True)
class Chunk:
    """Tokens `start` to `end` of a sequence; its last `num_rows` tokens get logits.

    `draws`: the chunk ends with the sequence's last token, so the next one is drawn. `draft` may
    be what follows; it is computed as well, and each of its tokens gets logits.
    """

    sequence: Sequence
    start: int
    end: int
    num_rows: int
    draws: bool
    draft: list[int] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """The tokens that the step computes."""
        return self.end - self.start + len(self.draft)

    @property
    def num_drawn(self) -> int:
        """The tokens that were drawn after the chunk."""
        return len(self.sequence.token_ids) - self.end

    @property
    def decodes(self) -> bool:
        return self.draws and self.end - self.start == 1
