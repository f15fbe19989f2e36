"""Prompts of requests as tokens. It tokenises and renders templates: not for an event loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from ingot.runtime.tokenizer import Tokenizer
from ingot.serve.engine import ModelFacts
from ingot.serve.openai.conversation import encoded, rendered
from ingot.serve.openai.fields import MAX_PROMPTS, FieldError
from ingot.serve.openai.params import Terms, num_new_tokens
from ingot.serve.openai.requests import ChatRequest, CompletionRequest

# A prompt with more characters for each token of the context than this cannot fit, and is refused
# before it is tokenised.
MAX_CHARS_PER_TOKEN = 8
# So many are tokenised where most of the tokens are not kept, or only counted.
MAX_TOKENIZED_CHARS = 1 << 20

Request = CompletionRequest | ChatRequest


class Prompt(Struct, frozen=True):
    """A prompt as text and as tokens; `text` is None where the client gave tokens."""

    token_ids: list[int]
    text: str | None = None


def completion_prompts(
    request: CompletionRequest, tokenizer: Tokenizer | None, facts: ModelFacts
) -> list[Prompt]:
    """The prompts of a completion; texts need a tokenizer. Raises RequestError."""
    prompts = [
        _from_text(each, tokenizer, facts, request)
        if isinstance(each, str) and tokenizer is not None
        else Prompt(_known(each, facts))
        for each in _each_prompt(request.prompt)
    ]
    return [_fitting(each, request, facts, "prompt") for each in prompts]


def chat_prompt(
    request: ChatRequest, tokenizer: Tokenizer, facts: ModelFacts, terms: Terms
) -> Prompt:
    """The prompt of a conversation. Raises RequestError."""
    text = rendered(request, tokenizer, terms)
    _refuse_long(text.plain, facts, request, "messages")
    prompt = Prompt(encoded(request, text, tokenizer), text.plain)
    return _fitting(prompt, request, facts, "messages")


def _each_prompt(given: str | Sequence[Any]) -> list[str | list[int]]:
    """The prompts of a request: a text, tokens, or a list of either. Raises FieldError."""
    if isinstance(given, str):
        return [given]
    if all(isinstance(each, int) for each in given):
        return [[*given]]
    if len(given) > MAX_PROMPTS:
        raise FieldError("prompt", f"prompt has {len(given)} prompts; at most {MAX_PROMPTS}")
    kind = type(given[0])
    for number, each in enumerate(given):
        if not isinstance(each, kind):
            raise FieldError(
                f"prompt[{number}]",
                "prompt mixes kinds",
                hint="Give a text, a list of texts, tokens, or a list of token lists.",
            )
    return [*given]


def _from_text(
    text: str, tokenizer: Tokenizer, facts: ModelFacts, request: CompletionRequest
) -> Prompt:
    _refuse_long(text, facts, request, "prompt")
    special = request.add_special_tokens
    if special is None:
        special = request.session_id is None  # an empty session gets them: see `SessionAsk.first`
    return Prompt(tokenizer.encode(text, add_special_tokens=special), text)


def _refuse_long(text: str, facts: ModelFacts, request: Request, param: str) -> None:
    """Raises FieldError for a text that cannot fit, or of which more is to be cut off than is
    looked at."""
    most = facts.max_model_len * MAX_CHARS_PER_TOKEN
    if request.truncate_prompt_tokens is not None:
        most = max(most, MAX_TOKENIZED_CHARS)
    if len(text) > most:
        raise FieldError(
            param,
            f"This model's maximum context length is {facts.max_model_len} tokens; the prompt has "
            f"{len(text)} characters, of which at most {most} are looked at",
            code="context_length_exceeded",
        )


def _known(token_ids: str | list[int], facts: ModelFacts) -> list[int]:
    assert not isinstance(token_ids, str), "texts come with a tokenizer"
    largest = max(token_ids, default=0)
    if largest >= facts.vocab_size:
        raise FieldError(
            "prompt",
            f"the prompt has token {largest}",
            hint=f"The vocabulary has the tokens 0 to {facts.vocab_size - 1}.",
        )
    return token_ids


def _fitting(prompt: Prompt, request: Request, facts: ModelFacts, param: str) -> Prompt:
    """A prompt that leaves room for a token, if one is asked for; or as many of its last tokens as
    the request wants kept. Raises FieldError."""
    needs_one = num_new_tokens(request) != 0
    kept = _kept(request, facts)
    if kept is not None and kept < len(prompt.token_ids):
        prompt = Prompt(prompt.token_ids[-kept:] if kept else [])
    count = len(prompt.token_ids)
    if not count and request.session_id is None:  # a session may go on without more
        raise FieldError(param, f"{param} has no tokens", hint="Give at least one.")
    if count > facts.max_model_len - needs_one:
        also = ", and a completion needs one of them" if needs_one else ""
        raise FieldError(
            param,
            f"This model's maximum context length is {facts.max_model_len} tokens{also}; the "
            f"prompt has {count}",
            hint="Shorten it, or let truncate_prompt_tokens do so.",
            code="context_length_exceeded",
        )
    return prompt


def _kept(request: Request, facts: ModelFacts) -> int | None:
    """Number of the last tokens of a prompt that are kept; None: all. -1 stands for those that
    leave room for the completion. Raises FieldError where that leaves none."""
    if request.truncate_prompt_tokens != -1:
        return request.truncate_prompt_tokens
    wanted, most = num_new_tokens(request), facts.max_model_len
    if wanted is None:  # the model's own default may be for a longer context
        usual = facts.defaults.get("max_tokens") or 1
        return most - (usual if usual < most else 1)
    if wanted >= most:
        raise FieldError(
            "max_tokens",
            f"This model's maximum context length is {most} tokens; {wanted} new ones are asked "
            "for, which leaves none for the prompt",
            hint=f"Give a max_tokens of at most {most - 1}, or a truncate_prompt_tokens above 0.",
            code="context_length_exceeded",
        )
    return most - wanted
