"""A request: a prompt and its completions, from its check to its last output."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol

from ingot.errors import RequestError
from ingot.runtime.detokenizer import Detokenizer
from ingot.runtime.field_checks import plain
from ingot.runtime.metrics import EPOCH, RequestMetrics, Times
from ingot.runtime.output import CompletionOutput, FinishReason, Logprob, RequestOutput, TextDelta
from ingot.runtime.page_table import PageTable
from ingot.runtime.params import MAX_PRIORITY, SamplingParams
from ingot.runtime.reasoning import ReasoningParams, ReasoningSplit
from ingot.runtime.sequence import Sequence
from ingot.runtime.sessions.state import SessionState
from ingot.runtime.stop_strings import StopStrings
from ingot.runtime.tokenizer import Tokenizer

INDEX_BITS = 16  # of a sequence's key; the rest is the request's number


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """A prompt that is to be completed, and what has become of it.

    Attributes:
        token_ids: the prompt; `prompt` is its text, if that was given.
        params: for the model that it is asked of; see `SamplingParams.for_model`.
        tokenizer: writes the texts of its outputs; None: they have none.
        priority: a smaller one comes first.
        salt: only requests of the same salt share cached prefixes.
        snapshot_at: numbers of tokens after which the record of its sequence is kept, where there
            is one, down to the last page border; others that begin alike go on from there.
        request_id: "": the engine finds one.
        session: whose tokens the prompt begins with, and which goes on with the completion.
        completions: its sequences, once it runs.
    """

    token_ids: list[int]
    params: SamplingParams
    prompt: str | None = None
    tokenizer: Tokenizer | None = None
    priority: int = 0
    salt: bytes = b""
    snapshot_at: tuple[int, ...] = ()
    request_id: str = ""
    session: SessionState | None = None
    completions: list[CompletionReader] = field(init=False, default_factory=list)

    def follow(self, owner: Owner, first: Sequence) -> None:
        """Notes the sequences that an engine has made of it."""
        sequences = [first, *first.siblings]
        self.completions = [CompletionReader(owner, each, self.tokenizer) for each in sequences]

    def refused(self) -> None:
        """Gives the turn of its session back, where it was never added to an engine."""
        if self.session is not None and not self.completions:
            self.session.done()

    @property
    def finished(self) -> bool:
        return all(completion.finished for completion in self.completions)

    @property
    def error(self) -> Exception | None:
        """Error that ended the request; None if nothing went wrong."""
        return next((c.sequence.error for c in self.completions if c.sequence.error), None)

    @property
    def nothing_delivered(self) -> bool:
        """True until a delta of any completion is taken."""
        return all(completion.nothing_delivered for completion in self.completions)

    @property
    def num_generated(self) -> int:
        return sum(completion.sequence.num_generated for completion in self.completions)

    def abort(self) -> None:
        """Ends all completions that are not finished."""
        for completion in self.completions:
            completion.abort()

    def output(self, *, delta: bool = False) -> RequestOutput:
        """The request so far, or with `delta` only what is new. Raises the error that ended it."""
        if self.error is not None:
            raise self.error
        first = self.completions[0].sequence
        prompt_logprobs = None
        if first.params.prompt_logprobs is not None:
            spell = self.completions[0].spell
            prompt_logprobs = [None, *map(spell, first.prompt_logprobs)]
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=first.prompt_ids,
            outputs=[completion.output(delta=delta) for completion in self.completions],
            finished=self.finished,
            num_cached_tokens=first.num_cached,
            prompt_logprobs=prompt_logprobs,
            metrics=metrics_of([completion.sequence for completion in self.completions]),
        )


class Owner(Protocol):
    """Protocol of the engine, as far as a request ends its sequences."""

    def abort(self, sequence: Sequence) -> None: ...
    def finish(
        self, sequence: Sequence, reason: FinishReason, stop_reason: str | int | None = None
    ) -> None: ...


class CompletionReader:
    """Follows one sequence of an engine. Without a `tokenizer` all text is empty.

    It shows only the tokens that `advance` has seen, so that tokens and their text come together.
    """

    def __init__(self, owner: Owner, sequence: Sequence, tokenizer: Tokenizer | None) -> None:
        params = sequence.params
        self.sequence = sequence
        self.finished = False
        self._owner = owner
        self._tokenizer = tokenizer
        self._detokenizer = None
        if tokenizer is not None:
            skips, spaces = params.skip_special_tokens, params.spaces_between_special_tokens
            self._detokenizer = tokenizer.detokenizer(skips, spaces, sequence.prompt_ids)
        self._stops = StopStrings(params.stops, include=params.include_stop_str_in_output)
        reasoning = params.reasoning
        self._split = ReasoningSplit(reasoning) if isinstance(reasoning, ReasoningParams) else None
        self._pieces: list[str] = []
        self._num_seen = 0  # of the generated tokens, how many are in the text
        self._num_tokens_out = 0  # of the generated tokens, how many a delta has reported
        self._num_pieces_out = 0
        self._end_is_out = False

    def advance(self) -> None:
        """Takes in new tokens; ends the sequence when a stop string is complete."""
        sequence = self.sequence
        while (
            self._num_seen < sequence.num_generated
            and sequence.error is None
            and self._stops.found is None
        ):
            self._num_seen += 1
            if self._detokenizer is not None:
                self._take(self._detokenizer, last=self._num_seen == sequence.num_generated)
        self.finished = sequence.finished

    def abort(self) -> None:
        """Ends the completion and keeps the text so far."""
        self._owner.abort(self.sequence)
        self.advance()

    @property
    def has_news(self) -> bool:
        # Of a completion without tokens the end is all that there is to tell.
        is_empty = self.finished and not self.sequence.params.max_tokens
        return self._num_seen > self._num_tokens_out or (is_empty and not self._end_is_out)

    @property
    def nothing_delivered(self) -> bool:
        """True until a delta is taken."""
        return self._num_tokens_out == 0 and not self._end_is_out

    def take_delta(self) -> TextDelta:
        """Takes the text and the tokens that came since the last call."""
        return TextDelta(**self._part(delta=True))

    def output(self, *, delta: bool = False) -> CompletionOutput:
        """The completion so far, or with `delta` only what is new."""
        sequence = self.sequence
        if sequence.params.logprobs is None:
            return CompletionOutput(**self._part(delta=delta))
        logprobs = sequence.logprobs[self._num_tokens_out if delta else 0 : self._num_seen]
        return CompletionOutput(
            **self._part(delta=delta),
            cumulative_logprob=sequence.cumulative_logprob,
            logprobs=[self.spell(each) for each in logprobs],
        )

    def spell(self, logprobs: dict[int, Logprob]) -> dict[int, Logprob]:
        """The log-probabilities with the text of each token."""
        if self._tokenizer is None:
            return logprobs
        return {
            token: Logprob(lp.logprob, lp.rank, self._tokenizer.decode([token], False))
            for token, lp in logprobs.items()
        }

    def _part(self, *, delta: bool) -> dict[str, Any]:
        """The fields that outputs and deltas have in common; a delta is reported once."""
        sequence, first = self.sequence, self.sequence.num_prompt
        begin = first + (self._num_tokens_out if delta else 0)
        text = self._pieces[self._num_pieces_out if delta else 0 :]
        if delta:
            self._num_tokens_out, self._num_pieces_out = self._num_seen, len(self._pieces)
            self._end_is_out = self.finished
        return {
            "index": sequence.index,
            "text": "".join(text),
            "token_ids": sequence.token_ids[begin : first + self._num_seen],
            "finish_reason": sequence.finish_reason if self.finished else None,
            "stop_reason": sequence.stop_reason if self.finished else None,
        }

    def _take(self, detokenizer: Detokenizer, *, last: bool) -> None:
        sequence, params = self.sequence, self.sequence.params
        token = sequence.token_ids[sequence.num_prompt + self._num_seen - 1]
        last = last and sequence.finished
        # A stop token is no part of the text; the last one of a grammar is.
        ended = last and sequence.finish_reason == "stop" and token in sequence.stop_ids
        shown = not ended or params.include_stop_str_in_output
        self._give(detokenizer.push(token) if shown else "", self._num_seen >= params.min_tokens)
        if last and self._stops.found is None:
            self._give(detokenizer.finish(cut=sequence.finish_reason == "length"))
            if self._split is not None:
                self._pieces.append(self._stops.push(self._split.finish()))
        if self._stops.found is None:
            if last:
                self._pieces.append(self._stops.finish())
        elif sequence.finished:  # the stop string came with the last token that had room
            sequence.finish_reason, sequence.stop_reason = "stop", self._stops.found
        else:
            self._owner.finish(sequence, "stop", self._stops.found)

    def _give(self, text: str, armed: bool = True) -> None:
        """Hands out text, without what may be part of a stop string; `armed`: these count."""
        if self._split is not None:
            thought, text = self._split.push(text)
            self._pieces.append(thought)
        self._pieces.append(self._stops.push(text, armed=armed))


def sequence_of(
    request: Request,
    number: int,
    first_id: int,
    *,
    rank: int,
    max_len: int,
    seed: int,
    stop_ids: frozenset[int],
    vocab_size: int = 0,
) -> Sequence:
    """The sequence of the first completion; those of the others are its siblings.

    The request is number `number` of its engine, and `seed` is for one whose parameters have none.
    """
    arrived, params, session = perf_counter(), request.params, request.session
    own_seed, key, num_before = seed, (number + 1) << INDEX_BITS, 0
    if session is not None:
        own_seed, key = session.seed, session.key
        num_before = session.num_drawn if request.token_ids == session.token_ids else 0
    if params.seed is not None:  # it draws the same wherever and whenever it runs
        own_seed, key = params.seed, 0
    first, *siblings = (
        Sequence(
            first_id + index,
            list(request.token_ids),
            params,
            max_len,
            seed=own_seed,
            key=key | index,
            index=index,
            rank=(rank, first_id + index),
            salt=request.salt,
            stop_ids=stop_ids,
            times=Times(arrived),
            session=session,
            num_before=num_before,
            vocab_size=vocab_size,
        )
        for index in range(params.n)
    )
    first.siblings = siblings
    for sibling in siblings:
        sibling.parent = first
    return first


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestChecks:
    """Checks requests against the model's vocabulary and length, and the pages that there are.

    There are logits of the first `num_logits` tokens of the vocabulary; 0: of all.
    """

    vocab_size: int
    max_model_len: int
    pages: PageTable
    num_logits: int = 0

    def check(self, token_ids: list[int], params: SamplingParams | None = None) -> None:
        """Raises RequestError for a prompt that can never be served.

        With `params` None the prompt is only scored, and no token is added to it.
        """
        if not token_ids:
            raise RequestError("the prompt is empty", hint="Give at least one token.")
        low, high = min(token_ids), max(token_ids)
        if low < 0 or high >= self.vocab_size:
            raise RequestError(
                f"the prompt has token {low if low < 0 else high}",
                hint=f"The vocabulary has the tokens 0 to {self.vocab_size - 1}.",
            )
        scored = token_ids[1:] if params is not None and params.prompt_logprobs is not None else []
        if self.num_logits and max(scored, default=0) >= self.num_logits:
            raise RequestError(
                f"the prompt has token {max(scored)}, which has no log-probability",
                hint=f"The model gives those of the tokens 0 to {self.num_logits - 1} alone: leave "
                "out prompt_logprobs.",
            )
        # A completion needs room for one token; a prompt that is only read does not.
        room = self.max_model_len - (params is not None and params.max_tokens > 0)
        if len(token_ids) > room:
            raise RequestError(
                f"the prompt has {len(token_ids)} tokens",
                hint=f"At most {room} fit, as max_model_len is {self.max_model_len}.",
            )
        needed = len(token_ids) if params is None else self.max_len(token_ids, params) - 1
        num_pages = self.pages.most_of(needed)
        if num_pages > self.pages.num_pages:
            raise RequestError(
                f"the request needs {num_pages} pages of the KV cache, which has "
                f"{self.pages.num_pages}",
                hint="Pass a smaller max_tokens, or a larger kv_cache_bytes.",
            )

    def max_len(self, token_ids: list[int], params: SamplingParams) -> int:
        """The most tokens that the sequence can reach. The last one is drawn and not computed, also
        where it is not wanted."""
        if not params.max_tokens:
            return len(token_ids) + 1
        return min(self.max_model_len, len(token_ids) + params.max_tokens)


def check_priority(given: object) -> int:
    """A priority as an int. Raises RequestError."""
    priority = plain(given)
    if type(priority) is not int or not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise RequestError(
            f"priority is {priority!r:.80}",
            hint=f"priority must be an integer in [-{MAX_PRIORITY}, {MAX_PRIORITY}].",
        )
    return priority


def metrics_of(sequences: list[Sequence]) -> RequestMetrics:
    """Metrics of a request from those of its completions."""
    first = sequences[0]
    arrived = first.times.arrived
    started = min((s.times.started for s in sequences if s.times.started), default=None)
    begun = [s for s in sequences if s.num_generated]
    token = min((s.times.first_token for s in begun), default=None)
    last = max((s.times.last_token for s in sequences if s.times.last_token), default=None)
    spans = [s.times.last_token - s.times.first_token for s in begun]
    gaps = sum(s.num_generated - 1 for s in begun)
    if started is None:  # the first token came from the logits cache
        started = token
    finished = last if all(s.finished for s in sequences) else None
    return RequestMetrics(
        num_prompt_tokens=first.num_prompt,
        num_cached_tokens=first.num_cached,
        num_generated_tokens=sum(s.num_generated for s in sequences),
        num_preemptions=sum(s.num_preemptions for s in sequences),
        queue_seconds=_since(arrived, started),
        ttft_seconds=_since(arrived, token),
        tpot_seconds=sum(spans) / gaps if gaps else None,
        total_seconds=_since(arrived, last),
        arrival_time=arrived - EPOCH,
        first_scheduled_time=_since(EPOCH, started),
        first_token_time=_since(EPOCH, token),
        last_token_time=_since(EPOCH, last),
        finished_time=_since(EPOCH, finished),
    )


def _since(begin: float, moment: float | None) -> float | None:
    return None if moment is None else moment - begin
