"""A request: a prompt and its completions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ingot.runtime.completion import CompletionReader
from ingot.runtime.metrics import EPOCH, RequestMetrics
from ingot.runtime.output import RequestOutput
from ingot.runtime.sequence import Sequence


@dataclass(slots=True, eq=False)
class Request:
    """Follows the sequences of one prompt. `listen` is called when it has got further."""

    request_id: str
    prompt: str | None
    completions: list[CompletionReader]
    listen: Callable[[Request], None]

    @property
    def finished(self) -> bool:
        return all(completion.finished for completion in self.completions)

    @property
    def error(self) -> Exception | None:
        """What ended the request, if anything went wrong."""
        return next((c.sequence.error for c in self.completions if c.sequence.error), None)

    @property
    def is_untold(self) -> bool:
        """Whether no delta has been taken of any completion."""
        return all(completion.is_untold for completion in self.completions)

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


def metrics_of(sequences: list[Sequence]) -> RequestMetrics:
    """How the completions of one request fared together."""
    first = sequences[0]
    arrived = first.times.arrived
    started = min((s.times.started for s in sequences if s.times.started), default=None)
    begun = [s for s in sequences if s.num_generated]
    token = min((s.times.first_token for s in begun), default=None)
    last = max((s.times.last_token for s in begun), default=None)
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
