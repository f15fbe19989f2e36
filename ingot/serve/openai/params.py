"""The sampling parameters of requests, as an engine takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from ingot.errors import GrammarError, RequestError
from ingot.runtime.params import SamplingParams
from ingot.serve.engine import ModelFacts
from ingot.serve.openai.chat_defaults import ChatDefaults
from ingot.serve.openai.fields import FieldError
from ingot.serve.openai.form import form_error
from ingot.serve.openai.requests import (
    ChatRequest,
    CompletionRequest,
    GenerateRequest,
    Sampling,
)
from ingot.serve.openai.unsupported import refuse_unsupported

_FIELDS = Sampling.__struct_fields__


class Terms(Struct, frozen=True, kw_only=True):
    """Limits and permissions of requests.

    max_n                    completions of a prompt
    max_logprobs             log-probabilities of a token, besides its own
    tool_call_parser         the format of calls, or "auto" for that of the chat template
    trusts_request_template  requests may bring a chat template of their own
    chats                    what conversations are given that say nothing else
    """

    max_n: int = 16
    max_logprobs: int = 20
    tool_call_parser: str = "auto"
    trusts_request_template: bool = False
    chats: ChatDefaults = ChatDefaults()


def sampling_fields(
    request: CompletionRequest | ChatRequest,
    facts: ModelFacts,
    num_prompt: int,
    further: Mapping[str, Any],
) -> dict[str, Any]:
    """Fields of `SamplingParams` for a prompt of so many tokens, `further` ones among them.

    What a request leaves out the defaults of the model decide; without a `max_tokens` the
    completion may fill the context. Raises FieldError.
    """
    given = {name: v for name in _FIELDS if (v := getattr(request, name)) is not None}
    fields = {**facts.defaults, **given, **further}
    if (limit := num_new_tokens(request)) is not None:
        fields["max_tokens"] = limit
    room = facts.max_model_len - num_prompt
    fields["max_tokens"] = min(fields.get("max_tokens") or room, room)
    if limit == 0:  # the prompt alone is asked for
        fields |= {"max_tokens": 0, "min_tokens": 0}
    if fields.get("seed", 0) < -1:
        fields["seed"] += 2**64
    count = num_logprobs(request)
    if count is not None:
        fields["logprobs"] = count
        if request.echo and isinstance(request, CompletionRequest):
            fields["prompt_logprobs"] = max(count, fields.get("prompt_logprobs") or 0)
    _check(fields, facts, request)
    return fields


def num_new_tokens(request: GenerateRequest) -> int | None:
    """Number of tokens that a request asks for; None if it does not say."""
    newer = request.max_completion_tokens if isinstance(request, ChatRequest) else None
    return request.max_tokens if newer is None else newer


def thinking_budget(request: ChatRequest) -> tuple[str, int | None]:
    """The field that says how many tokens an answer may think, and their number; None is no bound,
    and so is vLLM's -1."""
    if request.max_thinking_tokens is not None:
        return "max_thinking_tokens", request.max_thinking_tokens
    given = request.thinking_token_budget
    return "thinking_token_budget", None if given == -1 else given


def num_logprobs(request: GenerateRequest) -> int | None:
    """Number of log-probabilities a token that a request asks for, besides the token's own."""
    if isinstance(request, CompletionRequest):
        return request.logprobs
    if isinstance(request, ChatRequest) and request.logprobs:
        return request.top_logprobs or 0
    return None


def _check(fields: dict[str, Any], facts: ModelFacts, request: GenerateRequest) -> None:
    """Raises FieldError for what the fields together cannot be."""
    try:
        # What takes a tokenizer, and time, the engine sees to.
        SamplingParams(**fields).check_tokens(facts.vocab_size)
    except GrammarError as error:
        raise form_error(error, request) from error
    except RequestError as error:
        param = error.found.partition(" ")[0]
        known = param in (*_FIELDS, "logprobs", "structured_outputs")
        raise FieldError(param if known else None, error.found, hint=error.hint) from None


def check_terms(request: CompletionRequest | ChatRequest, terms: Terms) -> None:
    """Raises FieldError for what a server does not allow, or cannot do at all."""
    refuse_unsupported(request)
    if isinstance(request, ChatRequest) and request.top_logprobs and not request.logprobs:
        raise FieldError(
            "top_logprobs", "top_logprobs needs logprobs", hint='Set "logprobs": true as well.'
        )
    if request.stream_options is not None and not request.stream:
        raise FieldError(
            "stream_options",
            "stream_options is for streams, and this is none",
            hint='Set "stream": true as well, or leave it out.',
        )
    if request.stream and request.prompt_logprobs is not None:
        raise FieldError("prompt_logprobs", "prompt_logprobs cannot be streamed")
    tops = "logprobs" if isinstance(request, CompletionRequest) else "top_logprobs"
    for name, most in {
        "n": terms.max_n, tops: terms.max_logprobs, "prompt_logprobs": terms.max_logprobs
    }.items():  # fmt: skip
        value = getattr(request, name)
        if value is not None and value > most:
            raise FieldError(name, f"{name} is {value}", hint=f"This server allows at most {most}.")
