"""A completion: a sequence and the text that its tokens become."""

from __future__ import annotations

from typing import Any

from ingot.runtime.detokenizer import Detokenizer
from ingot.runtime.engine import Engine
from ingot.runtime.output import CompletionOutput, Logprob, TextDelta
from ingot.runtime.sequence import Sequence
from ingot.runtime.stop_strings import StopStrings
from ingot.runtime.tokenizer import Tokenizer


class CompletionReader:
    """Follows one sequence of the engine. Without a `tokenizer` all text is empty.

    It shows only the tokens that `advance` has seen, so that tokens and their text come together.
    """

    def __init__(self, engine: Engine, sequence: Sequence, tokenizer: Tokenizer | None) -> None:
        params = sequence.params
        self.sequence = sequence
        self.finished = False
        self._engine = engine
        self._tokenizer = tokenizer
        self._detokenizer = None
        if tokenizer is not None:
            skips, spaces = params.skip_special_tokens, params.spaces_between_special_tokens
            self._detokenizer = tokenizer.detokenizer(skips, spaces, sequence.prompt_ids)
        self._stops = StopStrings(params.stops, include=params.include_stop_str_in_output)
        self._pieces: list[str] = []
        self._num_seen = 0  # of the generated tokens, how many are in the text
        self._num_tokens_out = 0  # of the generated tokens, how many a delta has reported
        self._num_pieces_out = 0

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
        self._engine.abort(self.sequence)
        self.advance()

    @property
    def has_news(self) -> bool:
        return self._num_seen > self._num_tokens_out

    @property
    def is_untold(self) -> bool:
        """Whether no delta has been taken yet."""
        return self._num_tokens_out == 0

    def take_delta(self) -> TextDelta:
        """What has come since the last call."""
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
        text = detokenizer.push(token) if shown else ""
        self._pieces.append(self._stops.push(text, armed=self._num_seen >= params.min_tokens))
        if last and self._stops.found is None:
            cut = sequence.finish_reason == "length"
            self._pieces.append(self._stops.push(detokenizer.finish(cut=cut)))
        if self._stops.found is None:
            if last:
                self._pieces.append(self._stops.finish())
        elif sequence.finished:  # the stop string came with the last token that had room
            sequence.finish_reason, sequence.stop_reason = "stop", self._stops.found
        else:
            self._engine.finish(sequence, "stop", self._stops.found)
