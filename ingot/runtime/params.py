"""Sampling parameters of a request, under vLLM's names."""

from __future__ import annotations

import copy
import dataclasses
import enum
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from ingot.runtime.bad_words import spellings
from ingot.runtime.field_checks import (
    flag,
    integer,
    number,
    plain,
    refuse,
    refuse_unknown,
    token_ids,
    values,
)
from ingot.runtime.reasoning import Budget, Decode, ReasoningParams
from ingot.runtime.structured.outputs import StructuredOutputsParams

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ingot.runtime.structured.guide import Grammar

MAX_N = 16384
MAX_PRIORITY = 1000  # of a request, and its negative
MAX_LOGPROBS = 1000
MAX_STOPS = 64
MAX_BAD_WORDS = 1024
MAX_BIAS = 100.0
MAX_PENALTY = 1e9  # float32 holds it, and a logit over it
MIN_TEMPERATURE = 0.01  # between 0 and this, float32 could not tell the scaled logits apart
UNLIMITED = 2**31 - 1

# What None stands for, which vLLM's scripts may pass.
_ABSENT: dict[str, Any] = {
    **dict.fromkeys(("stop", "stop_token_ids", "bad_words", "logits_processors"), ()),
    "max_tokens": UNLIMITED,
}

LogitsProcessor = Callable[..., "npt.NDArray[np.float32]"]


class RequestOutputKind(enum.Enum):
    """Contents of each output of a stream: all so far, what is new, or nothing before the end."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling parameters of one request, and the conditions that end it.

    A field that is assigned to is checked like a new object. A request keeps the values that it
    was given.

    In the order in which they act on the logits:

    logits_processors     functions (generated ids, logits) or (prompt ids, generated ids, logits)
                          that return float32 logits; they may change the row they are given
    structured_outputs    the form of the completion: StructuredOutputsParams, or a dict of its
                          fields. Only tokens that the form can go on with are drawn
    allowed_token_ids     nothing else is drawn
    logit_bias            {token: addend}; clamped to [-100, 100]
    repetition_penalty    for tokens of the prompt and the completion: divides logits above 0,
                          multiplies those below; at most 1e9
    frequency_penalty     subtracted once for every time that the completion has the token
    presence_penalty      subtracted if the completion has the token
    bad_words             texts that are not written: the last token of each of their spellings,
                          where the tokens before it have just been drawn
    min_tokens            no end-of-sequence token, stop token or stop string before this many
    temperature           divides the logits; 0 is greedy, and what is below 0.01 becomes 0.01
    top_k                 keep the k likeliest tokens and those as likely as the k-th; 0 or -1: all
    min_p                 of those, keep what is at least this likely relative to the likeliest
    top_p                 of those, keep the fewest whose probability together reaches top_p

    And the rest:

    n                     completions of the prompt; their draws are independent, and equal where
                          temperature is 0
    seed                  the same seed and prompt draw the same tokens; None, -1: the model's seed
    max_tokens            at most this many new tokens; None: as many as the model has room for;
                          0: the prompt is read, for its log-probabilities, and may fill the context
    stop                  strings that end the text
    include_stop_str_in_output
                          the text keeps the stop string that ended it
    reasoning             with what it may begin: ReasoningParams, or a dict of its fields. Strings
                          of `stop` count behind it alone, and it may be bounded
    stop_token_ids        tokens that end it, besides the model's end-of-sequence tokens
    ignore_eos            the model's end-of-sequence tokens do not end it
    logprobs              return this many of the likeliest tokens' log-probabilities a position,
                          and the drawn token's; -1: all. They are the model's own, before all of
                          the above
    prompt_logprobs       the same for the tokens of the prompt
    detokenize            False leaves all text empty; for artifacts without a tokenizer
    skip_special_tokens   special tokens leave no text
    spaces_between_special_tokens
                          False: no space between special tokens, where the tokenizer writes one
    output_kind           what the outputs of a stream hold

    Raises RequestError (a ValueError) that names the field, its value and the range.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    max_tokens: int = 16
    min_tokens: int = 0
    stop: str | Sequence[str] = ()
    include_stop_str_in_output: bool = False
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    bad_words: Sequence[str] = ()
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    logits_processors: Sequence[LogitsProcessor] = ()
    structured_outputs: StructuredOutputsParams | Mapping[str, Any] | None = None
    reasoning: ReasoningParams | Mapping[str, Any] | None = None
    bad_word_ids: tuple[tuple[int, ...], ...] = dataclasses.field(
        default=(), init=False, repr=False, compare=False
    )
    grammar: Grammar | None = dataclasses.field(default=None, init=False, repr=False, compare=False)
    budget: Budget | None = dataclasses.field(default=None, init=False, repr=False, compare=False)

    # Seen before the generated __init__, so that an unknown name gets our error and not TypeError.
    def __new__(cls, **given: Any) -> SamplingParams:
        refuse_unknown(cls.__name__, given, _GIVEN)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        if "numpy" in sys.modules:
            for name in _GIVEN:
                if (value := plain(given := getattr(self, name))) is not given:
                    self._set(name, value)
        for name, absent in _ABSENT.items():
            if getattr(self, name) is None:
                self._set(name, absent)
        self._set("structured_outputs", StructuredOutputsParams.of(self.structured_outputs))
        self._set("reasoning", ReasoningParams.of(self.reasoning))
        self._check_lists()
        self._check_numbers()
        self._check_counts()
        for name in _FLAGS:
            flag(name, getattr(self, name))
        if not isinstance(self.output_kind, RequestOutputKind):
            refuse("output_kind", self.output_kind, "a RequestOutputKind")
        self._check_together()

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_lists(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        self._set("stop", values("stop", stop, str, MAX_STOPS))
        self._set("stop_token_ids", token_ids("stop_token_ids", self.stop_token_ids, MAX_STOPS))
        self._set("bad_words", values("bad_words", self.bad_words, str, MAX_BAD_WORDS))
        if self.allowed_token_ids is not None:
            allowed = token_ids("allowed_token_ids", self.allowed_token_ids, UNLIMITED)
            if not allowed:
                refuse("allowed_token_ids", self.allowed_token_ids, "None, or name a token")
            self._set("allowed_token_ids", tuple(sorted(set(allowed))))
        self._set("logit_bias", _bias(self.logit_bias))
        processors = self.logits_processors
        is_list = isinstance(processors, (list, tuple))
        if not is_list or not all(callable(processor) for processor in processors):
            refuse("logits_processors", processors, "a list of functions")
        self._set("logits_processors", tuple(processors))

    def _check_numbers(self) -> None:
        number("temperature", self.temperature, 0)
        if 0 < self.temperature < MIN_TEMPERATURE:
            self._set("temperature", MIN_TEMPERATURE)
        number("top_p", self.top_p, 0, 1, above=True)
        number("min_p", self.min_p, 0, 1)
        number("presence_penalty", self.presence_penalty, -2, 2)
        number("frequency_penalty", self.frequency_penalty, -2, 2)
        number("repetition_penalty", self.repetition_penalty, 0, MAX_PENALTY, above=True)

    def _check_counts(self) -> None:
        for name, absent in {"top_k": 0, "seed": None}.items():
            if type(value := getattr(self, name)) is int and value == -1:
                self._set(name, absent)
        integer("n", self.n, 1, MAX_N)
        integer("top_k", self.top_k, 0, UNLIMITED)
        integer("max_tokens", self.max_tokens, 0, UNLIMITED)
        integer("min_tokens", self.min_tokens, 0, UNLIMITED)
        if self.seed is not None:
            integer("seed", self.seed, 0, 2**64 - 1)
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                integer(name, getattr(self, name), -1, MAX_LOGPROBS)

    def _check_together(self) -> None:
        if self.min_tokens > self.max_tokens:
            refuse("min_tokens", self.min_tokens, f"at most max_tokens, {self.max_tokens}")
        if not all(self.stops):
            refuse("stop", self.stop, "strings that are not empty")
        if not all(word.strip() for word in self.bad_words):
            refuse("bad_words", self.bad_words, "strings that are more than spaces")
        if self.stop and not self.detokenize:
            refuse("stop", self.stop, "empty when detokenize is False")

    def for_model(
        self,
        vocab_size: int,
        encode: Callable[[str], list[int]] | None = None,
        compile_grammar: Callable[[StructuredOutputsParams], Grammar] | None = None,
        decode: Decode | None = None,
    ) -> SamplingParams:
        """These parameters for a vocabulary, with the spellings of `bad_words` by `encode`, the
        grammar of `structured_outputs`, and the budget of `reasoning`, whose tokens `decode` reads.

        Raises RequestError for tokens that the vocabulary lacks, for bad words and budgets without
        a tokenizer, and as `compile_grammar` does.
        """
        self.check_tokens(vocab_size)
        params = self
        if self.bad_words and not self.bad_word_ids:
            if encode is None:
                refuse("bad_words", self.bad_words, "empty for a model without a tokenizer")
            params = self.clone()
            params._set("bad_word_ids", spellings(self.bad_words, encode))
        if isinstance(outputs := self.structured_outputs, StructuredOutputsParams) and (
            self.grammar is None
        ):
            if compile_grammar is None:
                refuse("structured_outputs", outputs, "None for a model without a tokenizer")
            params = params.clone()
            params._set("grammar", compile_grammar(outputs))
        reasoning = self.reasoning
        if isinstance(reasoning, ReasoningParams) and reasoning.max_tokens is not None:
            if encode is None or decode is None:
                refuse("reasoning", reasoning, "without max_tokens for a model without a tokenizer")
            params = params.clone()
            params._set("budget", Budget.of(reasoning, encode, decode))
        return params

    def check_tokens(self, vocab_size: int) -> None:
        """Raises RequestError for tokens that a vocabulary lacks."""
        for name in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
            for token in getattr(self, name) or ():
                if token >= vocab_size:
                    refuse(name, token, f"below {vocab_size}, the size of the vocabulary")

    def clone(self) -> SamplingParams:
        """A copy."""
        return copy.copy(self)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def stops(self) -> tuple[str, ...]:
        """`stop` as a tuple, whatever it was given as."""
        return tuple(self.stop)


def _assign(params: SamplingParams, name: str, value: Any) -> None:
    """Changes a field, or nothing where the parameters together would not be valid."""
    changed = dataclasses.replace(params, **{name: value})
    for field in fields(changed):
        params._set(field.name, getattr(changed, field.name))


# Every request asks for these names several times.
_GIVEN = [field.name for field in fields(SamplingParams) if field.init]
_FLAGS = [field.name for field in fields(SamplingParams) if isinstance(field.default, bool)]

# The class is frozen, so that what fills it in passes this by.
SamplingParams.__setattr__ = _assign  # type: ignore[method-assign, assignment]

# `inspect` and `help` would show what `__new__` takes, which is anything.
_of_init = inspect.signature(SamplingParams.__init__)
SamplingParams.__signature__ = _of_init.replace(  # type: ignore[attr-defined]
    parameters=list(_of_init.parameters.values())[1:]
)


def _bias(given: Any) -> dict[int, float] | None:
    if given is None:
        return None
    if not isinstance(given, Mapping):
        refuse("logit_bias", given, "a dict of token ids and numbers")
    ids = token_ids("logit_bias", list(given), UNLIMITED)
    biases = [plain(bias) for bias in given.values()]
    for bias in biases:
        number("logit_bias", bias)
    clamped = (max(-MAX_BIAS, min(MAX_BIAS, float(bias))) for bias in biases)
    return dict(sorted(zip(ids, clamped, strict=True))) or None
