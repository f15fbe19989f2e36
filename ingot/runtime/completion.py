"""A completion: a sequence and the text that its tokens become."""

from __future__ import annotations

from ingot.runtime.detokenizer import Detokenizer
from ingot.runtime.engine import Engine
from ingot.runtime.output import CompletionOutput, Logprob, TextDelta
from ingot.runtime.sequence import Sequence
from ingot.runtime.stop_strings import StopStrings
from ingot.runtime.tokenizer import Tokenizer


class Completion:
    """Follows one sequence of the engine. `tokenizer` None leaves all text empty.

    It shows only what `advance` has seen: tokens and their text come together.
    """

    def __init__(self, engine: Engine, sequence: Sequence, tokenizer: Tokenizer | None) -> None:
        params = sequence.params
        self.sequence = sequence
        self.finished = False
        self._engine = engine
        self._tokenizer = tokenizer
        self._detokenizer = None
        if tokenizer is not None:
            self._detokenizer = tokenizer.detokenizer(
                params.skip_special_tokens,
                params.spaces_between_special_tokens,
                sequence.token_ids[: sequence.num_prompt],
            )
        self._stops = StopStrings(params.stops, include=params.include_stop_str_in_output)
        self._pieces: list[str] = []
        self._num_seen = 0  # of the generated tokens, how many are in the text
        self._num_tokens_out = 0  # of the generated tokens, how many a delta has reported
        self._num_pieces_out = 0

    def advance(self) -> None:
        """Takes in new tokens; ends the sequence when a stop string is complete."""
        sequence = self.sequence
        while self._num_seen < sequence.num_generated and self._goes_on:
            self._num_seen += 1
            if self._detokenizer is not None:
                self._take(self._detokenizer, last=self._num_seen == sequence.num_generated)
        self.finished = sequence.finished

    def abort(self) -> None:
        """Ends the completion; its text stays as far as it has come."""
        self._engine.abort(self.sequence)
        self.advance()

    @property
    def _goes_on(self) -> bool:
        return self.sequence.error is None and self._stops.found is None

    @property
    def has_news(self) -> bool:
        return self._num_seen > self._num_tokens_out

    def take_delta(self) -> TextDelta:
        """What has come since the last call."""
        sequence, begin = self.sequence, self.sequence.num_prompt + self._num_tokens_out
        delta = TextDelta(
            index=sequence.index,
            text="".join(self._pieces[self._num_pieces_out :]),
            token_ids=sequence.token_ids[begin : sequence.num_prompt + self._num_seen],
            finish_reason=sequence.finish_reason if self.finished else None,
            stop_reason=sequence.stop_reason if self.finished else None,
        )
        self._num_tokens_out, self._num_pieces_out = self._num_seen, len(self._pieces)
        return delta

    def output(self, *, delta: bool = False) -> CompletionOutput:
        """The completion as far as it has come, or with `delta` what is new."""
        sequence = self.sequence
        begin = self._num_tokens_out if delta else 0
        text = self._pieces[self._num_pieces_out if delta else 0 :]
        if delta:
            self._num_tokens_out, self._num_pieces_out = self._num_seen, len(self._pieces)
        wants_logprobs = sequence.params.logprobs is not None
        logprobs = sequence.logprobs[begin : self._num_seen]
        first = sequence.num_prompt
        return CompletionOutput(
            index=sequence.index,
            text="".join(text),
            token_ids=sequence.token_ids[first + begin : first + self._num_seen],
            cumulative_logprob=sequence.cumulative_logprob if wants_logprobs else None,
            logprobs=[self.spell(d) for d in logprobs] if wants_logprobs else None,
            finish_reason=sequence.finish_reason if self.finished else None,
            stop_reason=sequence.stop_reason if self.finished else None,
        )

    def spell(self, logprobs: dict[int, Logprob]) -> dict[int, Logprob]:
        """The log-probabilities with the text of each token."""
        if self._tokenizer is None:
            return logprobs
        return {
            token: Logprob(lp.logprob, lp.rank, self._tokenizer.decode([token], False))
            for token, lp in logprobs.items()
        }

    def _take(self, detokenizer: Detokenizer, *, last: bool) -> None:
        sequence, params = self.sequence, self.sequence.params
        token = sequence.token_ids[sequence.num_prompt + self._num_seen - 1]
        last = last and sequence.finished
        # The token that ended the sequence is no part of its text.
        ended = last and sequence.finish_reason == "stop"
        shown = not ended or params.include_stop_str_in_output
        text = detokenizer.push(token) if shown else ""
        self._emit(text, armed=self._num_seen >= params.min_tokens)
        if last and self._stops.found is None:
            self._emit(detokenizer.finish())
        if self._stops.found is None:
            if last:
                self._pieces.append(self._stops.finish())
        elif sequence.finished:  # the stop string came with the last token that had room
            sequence.finish_reason, sequence.stop_reason = "stop", self._stops.found
        else:
            self._engine.finish(sequence, "stop", self._stops.found)

    def _emit(self, text: str, *, armed: bool = True) -> None:
        self._pieces.append(self._stops.push(text, armed=armed))
