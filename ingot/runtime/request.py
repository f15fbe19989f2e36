"""A request: a sequence and the text that its tokens become."""

from __future__ import annotations

from collections.abc import Callable

from ingot.runtime.detokenizer import Detokenizer
from ingot.runtime.engine import Engine
from ingot.runtime.output import CompletionOutput, Logprob, RequestOutput, TextDelta
from ingot.runtime.sequence import Sequence
from ingot.runtime.stop_strings import StopStrings
from ingot.runtime.tokenizer import Tokenizer


class Request:
    """Follows one sequence of the engine. `tokenizer` None leaves all text empty."""

    def __init__(
        self, engine: Engine, sequence: Sequence, prompt: str | None, tokenizer: Tokenizer | None
    ) -> None:
        params = sequence.params
        self.sequence = sequence
        self.prompt = prompt
        self._engine = engine
        self._tokenizer = tokenizer
        self._detokenizer = (
            None if tokenizer is None else tokenizer.detokenizer(params.skip_special_tokens)
        )
        self._stops = StopStrings(params.stops, include=params.include_stop_str_in_output)
        self._pieces: list[str] = []
        self._num_seen = 0  # of the generated tokens, how many are in the text
        self._num_tokens_out = 0  # of the generated tokens, how many a delta has reported
        self._num_pieces_out = 0

    @property
    def finished(self) -> bool:
        return self.sequence.finished

    def advance(self) -> None:
        """Takes in new tokens; ends the sequence when a stop string is complete."""
        while self._num_seen < self.sequence.num_generated and self.sequence.error is None:
            self._num_seen += 1
            if self._detokenizer is not None:
                self._take(self._detokenizer, last=self._num_seen == self.sequence.num_generated)

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

    def abort(self) -> None:
        """Ends the request; its text stays as far as it has come."""
        self._engine.abort(self.sequence)

    def take_delta(self) -> TextDelta:
        """What has come since the last call. Raises the error that ended the request, if any."""
        self.raise_error()
        self.advance()  # where a step was interrupted
        ids = self.sequence.generated_ids
        delta = TextDelta(
            text="".join(self._pieces[self._num_pieces_out :]),
            token_ids=list(ids[self._num_tokens_out :]),
            finish_reason=self.sequence.finish_reason,
            stop_reason=self.sequence.stop_reason,
        )
        self._num_tokens_out, self._num_pieces_out = len(ids), len(self._pieces)
        return delta

    def output(self) -> RequestOutput:
        """The request as far as it has come. Raises the error that ended it, if any."""
        self.raise_error()
        self.advance()
        sequence = self.sequence
        wants_logprobs = sequence.params.logprobs is not None
        completion = CompletionOutput(
            index=0,
            text="".join(self._pieces),
            token_ids=list(sequence.generated_ids),
            cumulative_logprob=sequence.cumulative_logprob if wants_logprobs else None,
            logprobs=[self._spell(d) for d in sequence.logprobs] if wants_logprobs else None,
            finish_reason=sequence.finish_reason,
            stop_reason=sequence.stop_reason,
        )
        return RequestOutput(
            request_id=str(sequence.sequence_id),
            prompt=self.prompt,
            prompt_token_ids=sequence.token_ids[: sequence.num_prompt],
            outputs=[completion],
            finished=sequence.finished,
        )

    def raise_error(self) -> None:
        if self.sequence.error is not None:
            raise self.sequence.error

    def _emit(self, text: str, *, armed: bool = True) -> None:
        self._pieces.append(self._stops.push(text, armed=armed))

    def _spell(self, logprobs: dict[int, Logprob]) -> dict[int, Logprob]:
        if self._tokenizer is None:
            return logprobs
        return {
            token: Logprob(lp.logprob, lp.rank, self._tokenizer.decode([token], False))
            for token, lp in logprobs.items()
        }


class TextStream:
    """Iterates over a request's deltas. Closing it early, or losing it, aborts the request."""

    def __init__(
        self,
        request: Request,
        step: Callable[[], None],
        forget: Callable[[list[Request]], None],
        lose: Callable[[Request], None],
    ) -> None:
        self._request = request
        self._step = step
        self._forget = forget
        self._lose = lose
        self._ended = False

    def __iter__(self) -> TextStream:
        return self

    def __next__(self) -> TextDelta:
        if self._ended:
            raise StopIteration
        try:
            while True:
                delta = self._request.take_delta()
                if delta.token_ids or self._request.finished:
                    break
                self._step()
        except BaseException:
            self.close()
            raise
        if self._request.finished:
            self.close()
        return delta

    def output(self) -> RequestOutput:
        """The whole request as far as it has come."""
        return self._request.output()

    def close(self) -> None:
        """Aborts the request unless it is finished."""
        if not self._ended:
            self._ended = True
            self._forget([self._request])

    def __del__(self) -> None:
        # This can run at any time, even within a step: it only leaves a note.
        if not self._ended:
            self._lose(self._request)
