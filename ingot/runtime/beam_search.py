"""Beam search under vLLM's names: the likeliest completions that a search of some width finds."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Any, NamedTuple

from ingot.runtime.field_checks import flag, integer, number, plain, refuse, refuse_unknown
from ingot.runtime.output import FinishReason, Logprob, RequestOutput
from ingot.runtime.params import MAX_LOGPROBS, UNLIMITED, SamplingParams
from ingot.runtime.request import Request

MAX_BEAMS = MAX_LOGPROBS // 2
MAX_LENGTH_PENALTY = 30.0  # no length to this power, or to its negative, is beyond a float


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearchParams:
    """Width, end and ranking of a beam search.

    beam_width      beams that go on after each token, and that are returned
    max_tokens      at most this many new tokens
    ignore_eos      the model's end-of-sequence tokens do not end a beam
    temperature     0: the log-probabilities are the model's own
    length_penalty  beams are ranked by log-probability / length ** length_penalty. The length is
                    in tokens: those of the prompt count, and the one that ended the beam does not

    Raises RequestError (a ValueError) that names the field, its value and the range.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0

    # Seen before the generated __init__, so that an unknown name gets our error and not TypeError.
    def __new__(cls, **given: Any) -> BeamSearchParams:
        refuse_unknown(cls.__name__, given, [field.name for field in fields(cls)])
        return object.__new__(cls)

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, plain(getattr(self, field.name)))
        integer("beam_width", self.beam_width, 1, MAX_BEAMS)
        integer("max_tokens", self.max_tokens, 1, UNLIMITED)
        flag("ignore_eos", self.ignore_eos)
        number("temperature", self.temperature)
        if self.temperature != 0:
            refuse("temperature", self.temperature, "0: beams are ranked by the model's own")
        number("length_penalty", self.length_penalty, -MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY)

    @property
    def step(self) -> SamplingParams:
        """The request for the next token of a beam.

        It asks for twice as many candidates as beams go on, since some of them may end.
        """
        return SamplingParams(
            temperature=0, max_tokens=1, ignore_eos=True, logprobs=2 * self.beam_width
        )


@dataclass(slots=True, kw_only=True)
class BeamSearchSequence:
    """A beam. Its tokens and text begin with those of the prompt; the text has special tokens.

    `logprobs` has a dict for each new token, and `cum_logprob` is the sum over them.
    """

    tokens: list[int]
    logprobs: list[dict[int, Logprob]]
    cum_logprob: float = 0.0
    text: str | None = None
    finish_reason: FinishReason | None = None

    def score(self, length_penalty: float) -> float:
        length = len(self.tokens) - (self.finish_reason == "stop")
        return float(self.cum_logprob / length**length_penalty)


@dataclass(slots=True, kw_only=True)
class BeamSearchOutput:
    """The beams of a prompt, best first."""

    sequences: list[BeamSearchSequence]


class _Step(NamedTuple):
    """A token that may follow a beam, of those whose log-probabilities are known."""

    beam: BeamSearchSequence
    token: int
    logprobs: dict[int, Logprob]

    @property
    def cum_logprob(self) -> float:
        return self.beam.cum_logprob + self.logprobs[self.token].logprob

    def taken(self, finish_reason: FinishReason | None) -> BeamSearchSequence:
        """The beam with the token."""
        return BeamSearchSequence(
            tokens=[*self.beam.tokens, self.token],
            logprobs=[*self.beam.logprobs, self.logprobs],
            cum_logprob=self.cum_logprob,
            finish_reason=finish_reason,
        )


class Search:
    """The beams of one prompt: `live` go on, and `found` are the best that have ended.

    Args:
        request: asks for the first token of the prompt, by `BeamSearchParams.step`.
        max_model_len: the most tokens of a beam, whatever `params` say.
        eos_token_ids: tokens that end a beam unless `params` ignore them.
    """

    def __init__(
        self,
        request: Request,
        params: BeamSearchParams,
        *,
        max_model_len: int,
        eos_token_ids: Collection[int] = (),
    ) -> None:
        self._request = request
        self._width, self._penalty = params.beam_width, params.length_penalty
        self._ends = () if params.ignore_eos else eos_token_ids
        self._num_left = min(params.max_tokens, max_model_len - len(request.token_ids))
        self.live = [BeamSearchSequence(tokens=request.token_ids, logprobs=[])]
        self.found: list[BeamSearchSequence] = []

    @property
    def requests(self) -> list[Request]:
        """Requests for the next tokens of each live beam."""
        return [replace(self._request, token_ids=beam.tokens) for beam in self.live]

    def grow(self, following: list[dict[int, Logprob]]) -> None:
        """Gives each live beam its likeliest next tokens, and keeps the best of all."""
        self._num_left -= 1
        steps = [
            _Step(beam, token, logprobs)
            for beam, logprobs in zip(self.live, following, strict=True)
            for token in logprobs
        ]
        # Live beams are equally long, so the penalty does not change their order.
        steps.sort(key=lambda step: -step.cum_logprob)
        ending = [step for step in steps if step.token in self._ends]
        going_on = [step for step in steps if step.token not in self._ends]
        self._keep([step.taken("stop") for step in ending[: self._width]])
        last = self._num_left == 0
        self.live = [step.taken("length" if last else None) for step in going_on[: self._width]]
        if last:
            self._keep(self.live)
            self.live = []

    def _keep(self, ended: list[BeamSearchSequence]) -> None:
        beams = [*self.found, *ended]
        beams.sort(key=lambda beam: -beam.score(self._penalty))
        self.found = beams[: self._width]


def run_to_ends(
    searches: list[Search], run: Callable[[list[Request]], list[RequestOutput]]
) -> list[list[BeamSearchSequence]]:
    """Runs all searches to their ends, with the beams of all in one batch; `run` answers requests.
    Returns the sequences that each has found."""
    while requests := [request for each in searches for request in each.requests]:
        following = map(_first_logprobs, run(requests))
        for each in searches:
            each.grow(list(islice(following, len(each.live))))
    return [each.found for each in searches]


def _first_logprobs(output: RequestOutput) -> dict[int, Logprob]:
    logprobs = output.outputs[0].logprobs
    assert logprobs is not None, "a step of a beam asks for them"
    return logprobs[0]
