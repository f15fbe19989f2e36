"""What a request asks of the sampler, under vLLM's names."""

from __future__ import annotations

import difflib
import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from ingot.errors import RequestError

MAX_LOGPROBS = 1000
MAX_STOPS = 64
_FLAGS = ("include_stop_str_in_output", "ignore_eos", "detokenize", "skip_special_tokens")


class RequestOutputKind(enum.Enum):
    """What an output of a stream has: all so far, what is new, or all and only at the end."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the tokens of one request are drawn, and when it ends.

    temperature           divides the logits before everything else; below 1e-5 it is greedy
    top_k                 keep the k most likely tokens and those as likely as the k-th; 0 keeps all
    top_p                 of those, keep the fewest whose probability together reaches top_p
    seed                  the same seed and prompt draw the same tokens; None: by the model's seed
    max_tokens            at most this many new tokens
    min_tokens            no end-of-sequence token, stop token or stop string before this many
    stop                  strings that end the text
    include_stop_str_in_output
    stop_token_ids        tokens that end it, besides the model's end-of-sequence tokens
    ignore_eos            the model's end-of-sequence tokens do not end it
    logprobs              return this many of the likeliest tokens' log-probabilities a position,
                          and the drawn token's; they are the model's, before the temperature
    detokenize            False leaves all text empty; for artifacts without a tokenizer
    skip_special_tokens   special tokens leave no text

    Raises RequestError (a ValueError) that names the field, its value and the range.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    max_tokens: int = 16
    min_tokens: int = 0
    stop: str | Sequence[str] = ()
    include_stop_str_in_output: bool = False
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE

    # Seen before the generated __init__, so that an unknown name gets our error and not TypeError.
    def __new__(cls, **values: Any) -> SamplingParams:
        known = [f.name for f in fields(cls)]
        for name in values:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                raise RequestError(
                    f"SamplingParams has no field {name!r}" + (f"; {near[0]!r}?" if near else ""),
                    hint=f"Supported: {', '.join(known)}.",
                )
        return object.__new__(cls)

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        object.__setattr__(self, "stop", _tuple("stop", stop, str, MAX_STOPS))
        ids = _tuple("stop_token_ids", self.stop_token_ids, int, MAX_STOPS)
        object.__setattr__(self, "stop_token_ids", ids)
        object.__setattr__(self, "top_k", 0 if self.top_k == -1 else self.top_k)
        self._check_numbers()
        for flag in _FLAGS:
            if not isinstance(getattr(self, flag), bool):
                _refuse(flag, getattr(self, flag), "True or False")
        if not all(self.stop):
            _refuse("stop", self.stop, "strings that are not empty")
        if self.stop and not self.detokenize:
            _refuse("stop", self.stop, "empty when detokenize is False")
        if any(token < 0 for token in self.stop_token_ids):
            _refuse("stop_token_ids", self.stop_token_ids, "token ids")

    def _check_numbers(self) -> None:
        _number("temperature", self.temperature, 0, math.inf)
        _number("top_p", self.top_p, 0, 1, above=True)
        _integer("top_k", self.top_k, 0, 2**31 - 1)
        _integer("max_tokens", self.max_tokens, 1, 2**31 - 1)
        _integer("min_tokens", self.min_tokens, 0, self.max_tokens)
        if self.seed is not None:
            _integer("seed", self.seed, 0, 2**64 - 1)
        if self.logprobs is not None:
            _integer("logprobs", self.logprobs, 0, MAX_LOGPROBS)

    @property
    def stops(self) -> tuple[str, ...]:
        """`stop` as a tuple, whatever it was given as."""
        return tuple(self.stop)


def _refuse(name: str, value: object, wanted: str) -> None:
    shown = repr(value)
    raise RequestError(f"{name} is {shown[:80]}", hint=f"{name} must be {wanted}.")


def _tuple(name: str, value: object, kind: type, most: int) -> tuple[Any, ...]:
    items = tuple(value) if isinstance(value, (list, tuple, set, frozenset)) else (None,)
    if len(items) > most or not all(type(item) is kind for item in items):
        _refuse(name, value, f"at most {most} values of type {kind.__name__}")
    return items


def _number(name: str, value: object, low: float, high: float, *, above: bool = False) -> None:
    # A bool is an int to Python; as a number it is a mistake.
    fits = isinstance(value, (int, float)) and not isinstance(value, bool)
    fits = fits and math.isfinite(value) and low <= value <= high  # type: ignore[arg-type,operator]
    if not fits or (above and value == low):
        begin, end = "(" if above else "[", ")" if high == math.inf else "]"
        _refuse(name, value, f"a finite number in {begin}{low}, {high}{end}")


def _integer(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        _refuse(name, value, f"an integer in [{low}, {high}]")
