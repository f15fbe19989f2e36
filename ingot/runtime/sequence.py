"""A sequence: the tokens of one completion, how far they have come, and what it asks of the next.

Chunks are parts of it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ingot.errors import IngotError
from ingot.runtime.arrays import Int32
from ingot.runtime.bad_words import BadWords
from ingot.runtime.initial_record import InitialRecord, lead_of
from ingot.runtime.metrics import Times
from ingot.runtime.output import FinishReason, Logprob
from ingot.runtime.params import SamplingParams
from ingot.runtime.prompt_lookup import PromptLookup
from ingot.runtime.reasoning import BudgetState
from ingot.runtime.sessions.state import SessionState
from ingot.runtime.structured.guide import Allowed, Guide


@dataclass(slots=True, eq=False)
class Sequence:
    """The state of one completion, owned by the engine.

    `token_ids` are the prompt and what was generated. A step that is under way counts as done:
    `num_computed` tokens have their keys and values in the cache or will have them after it (none
    after a preemption), and `num_pending` counts the tokens that are being drawn: none, one, or
    two while the device has been given two steps.

    `num_rewound` tokens were computed before its record was put back: those from `num_computed` on
    are read again. While it `has_guessed`, its record has read tokens that may be wrong. Its record
    is kept at `borders`, beside those that every sequence leaves.

    `rank` orders the sequences, the smallest first. `salt` keeps prefixes apart: only sequences
    of the same salt share cached pages. `seed` and `key` name the sequence to the sampler's
    generator. It is completion `index` of its request; `siblings` are those that wait for the
    logits of its prompt, and each has it as `parent` until then. `lookup` guesses its tokens.
    Of a `session` it is one request; the last `num_before` tokens of its prompt were drawn by those
    before, and penalties count them as its own. The record that its session begins with stands for
    `lead` tokens before the first. It can draw the first `vocab_size` tokens; 0: all.
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
    num_before: int = 0
    vocab_size: int = 0
    num_prompt: int = 0
    num_computed: int = 0
    num_pending: int = 0
    num_cached: int = 0
    num_rewound: int = 0
    has_guessed: bool = False
    borders: set[int] = field(default_factory=set)
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
    session: SessionState | None = None
    lead: int = field(init=False)
    sampling: SamplingState = field(init=False)

    def __post_init__(self) -> None:
        self.num_prompt = len(self.token_ids)
        self.lead = lead_of(self.initial)
        self.sampling = SamplingState(self.params, self.stop_ids, self.num_before, self.vocab_size)

    @property
    def initial(self) -> InitialRecord | None:
        """What its record is before the first token; None: zeros."""
        return None if self.session is None else self.session.initial

    @property
    def length(self) -> int:
        """The number of tokens, including those that are being drawn."""
        return len(self.token_ids) + self.num_pending

    @property
    def num_remaining(self) -> int:
        """Tokens that have yet to be computed."""
        return self.length - self.num_computed

    @property
    def decodes(self) -> bool:
        """True if only its last token was never computed."""
        return self.length - max(self.num_computed, self.num_rewound) == 1

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
    def has_failed(self) -> bool:
        return self.error is not None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None or self.error is not None


@dataclass(slots=True)
class Chunk:
    """Tokens `start` to `end` of a sequence; its last `num_rows` tokens get logits.

    `draws`: the chunk ends with the sequence's last token, so the next one is drawn. `draft` may
    be what follows; it is computed as well, and each of its tokens gets logits. The first
    `num_reread` tokens were computed before.
    """

    sequence: Sequence
    start: int
    end: int
    num_rows: int
    draws: bool
    draft: list[int] = field(default_factory=list)
    num_reread: int = 0

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
        return self.draws and self.end - self.start == 1 + self.num_reread

    @property
    def is_single(self) -> bool:
        """True of a token that is known to be the next."""
        return self.draws and self.num_tokens == 1


class SampledSequence(Protocol):
    """Protocol of a sequence, as far as drawing its next token needs it."""

    params: SamplingParams
    token_ids: list[int]
    num_prompt: int
    key: int
    seed: int
    sampling: SamplingState


class SamplingState:
    """The edits that a sequence asks for; `advance` brings them up to date with its tokens.

    `stop_ids` are the tokens that end it, which are not drawn before its `min_tokens`.
    Tokens from `vocab_size` on are read and never drawn, so they are left out; 0: there are none.
    `seen` and `times` are the tokens that penalties look at, and how often each was generated;
    the first `num_seen` entries count. `version` changes whenever anything but `times` does.
    The last `num_before` tokens of the prompt count as generated. Unless `follows_tokens`, the
    edits are the same after every token. `guide` follows the grammar, if there is one.
    """

    def __init__(
        self,
        params: SamplingParams,
        stop_ids: Iterable[int] = (),
        num_before: int = 0,
        vocab_size: int = 0,
    ) -> None:
        self.params, self._num_before = params, num_before
        self._end = vocab_size or sys.maxsize
        self._stops = tuple(token for token in stop_ids if token < self._end)
        bias = params.logit_bias or {}
        self.guide = None if params.grammar is None else Guide(params.grammar)
        self._budget = None if params.budget is None else BudgetState(params.budget)
        self._may = None if params.allowed_token_ids is None else _ids(params.allowed_token_ids)
        self.allowed = self._may
        self.biased = _ids(bias)
        self.bias = np.fromiter(bias.values(), np.float32, len(bias))
        self.banned = _ids(())
        self.seen, self.times = _ids(()), _ids(())
        self.num_seen = 0
        self.version = 0
        self.record: tuple[int, bytes] | None = None  # the kernels' view of a version
        self._bad_words = BadWords(params.bad_word_ids)
        self._banned: tuple[int, ...] = ()
        self._forced: int | None = None
        self._guided: Allowed | None = None
        self._slots: dict[int, int] = {}  # of a token in `seen`
        self._num_counted = 0
        repeats = params.repetition_penalty != 1
        self._penalizes = repeats or (params.presence_penalty, params.frequency_penalty) != (0, 0)
        # Edits of this request can turn finite logits into others: they must not be blamed on the
        # model. A penalty that is not tiny leaves any logit below 2^64 finite.
        self.may_spoil = bool(params.logits_processors) or params.repetition_penalty < 2**-64
        self.follows_tokens = bool(
            self._penalizes
            or params.min_tokens
            or params.bad_word_ids
            or self.guide
            or self._budget
        )

    @property
    def has_edits(self) -> bool:
        arrays = (self.biased, self.banned, self.seen[: self.num_seen])
        return self.allowed is not None or any(array.size for array in arrays)

    def advance(self, token_ids: list[int], num_prompt: int) -> None:
        """Takes in the tokens that have come since the last call."""
        if not self.follows_tokens:
            return
        few = len(token_ids) - num_prompt < self.params.min_tokens
        completions = self._bad_words.completions(token_ids, num_prompt)
        never = (token for token in (*self._bad_words.always, *completions) if token < self._end)
        banned = (*never, *(self._stops if few else ()))
        guided = None if self.guide is None else self.guide.allowed(token_ids, num_prompt)
        forced = None if self._budget is None else self._budget.forced(token_ids, num_prompt)
        if forced is not None and guided is not None and not guided.has(forced):
            forced = None  # the form has no room for reasoning
        if (banned, forced) != (self._banned, self._forced) or guided is not self._guided:
            self._banned, self._forced, self._guided = banned, forced, guided
            self._restrict(banned, guided)
            if forced is not None:
                self.allowed, self.banned = _ids([forced]), _ids(())
            self.version += 1
        if self._penalizes:
            self._count(token_ids, num_prompt)

    def _restrict(self, banned: tuple[int, ...], guided: Allowed | None) -> None:
        """Sets `allowed` and `banned`, by the request and by its grammar."""
        self.banned, self.allowed = _ids(banned), self._may
        if self.guide is None or guided is None:
            return
        # An end that does not end this sequence would only spoil its text.
        dead_ends = self.guide.vocabulary.eos_token_ids.difference(self._stops)
        self.banned = np.concatenate([self.banned, guided.never, _ids(sorted(dead_ends))])
        if guided.only is not None:
            self.allowed = guided.only
            if self._may is not None:
                self.allowed = np.intersect1d(guided.only, self._may)

    def _count(self, token_ids: list[int], num_prompt: int) -> None:
        if len(token_ids) < self._num_counted:  # some were taken back
            self._slots.clear()
            self.num_seen = self._num_counted = 0
        for place in range(self._num_counted, len(token_ids)):
            if token_ids[place] >= self._end:
                continue
            slot = self._slots.setdefault(token_ids[place], self.num_seen)
            if slot == self.num_seen:
                self._append(token_ids[place])
            self.times[slot] += place >= num_prompt - self._num_before
        self._num_counted = len(token_ids)

    def _append(self, token: int) -> None:
        if self.num_seen == self.seen.size:
            more = (0, max(64, self.seen.size))
            self.seen, self.times = np.pad(self.seen, more), np.pad(self.times, more)
        self.seen[self.num_seen] = token
        self.times[self.num_seen] = 0
        self.num_seen += 1
        self.version += 1


def _ids(tokens: Iterable[int]) -> Int32:
    return np.array(tuple(tokens), np.int32)
