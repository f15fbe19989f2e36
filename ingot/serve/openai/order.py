"""Orders: what a request asks of an engine, as jobs. Made off the event loop."""

from __future__ import annotations

import hashlib
from typing import Any

from msgspec import Struct

from ingot.errors import RequestError, TokenizerError
from ingot.runtime.answers import AnswerReader, Style, style_of
from ingot.runtime.answers.described import described_style
from ingot.runtime.tokenizer import Tokenizer
from ingot.serve.engine import Engine, Job, ModelFacts, SessionAsk
from ingot.serve.openai.conversation import template_of
from ingot.serve.openai.fields import FieldError
from ingot.serve.openai.form import check_tools_of, form_of
from ingot.serve.openai.params import (
    Terms,
    check_terms,
    sampling_fields,
    thinking_budget,
)
from ingot.serve.openai.prompts import Prompt, chat_prompt, completion_prompts
from ingot.serve.openai.requests import ChatRequest, CompletionRequest


class Caller(Struct, frozen=True):
    """Caller: the id of the request, and the name of the key ("" without keys)."""

    request_id: str
    key: str = ""


class Order(Struct, frozen=True, kw_only=True):
    """A request with its prompts, and a job for each of them.

    Choice `i` of an answer is completion `i % n` of prompt `i // n`. A model may have no tokenizer:
    then prompts and completions are tokens, and no text.
    """

    request: CompletionRequest | ChatRequest
    prompts: list[Prompt]
    jobs: list[Job]
    n: int
    tokenizer: Tokenizer | None
    style: Style | None = None

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(prompt.token_ids) for prompt in self.prompts)

    @property
    def num_tokens(self) -> int:
        """The most tokens that the jobs can hold at once, prompts included."""
        return sum(len(job.token_ids) + self.n * int(job.params["max_tokens"]) for job in self.jobs)

    @property
    def scores(self) -> bool:
        """True if the answer has log-probabilities."""
        params = self.jobs[0].params
        return "logprobs" in params or "prompt_logprobs" in params

    def reader(self) -> AnswerReader | None:
        """Parser of calls and reasoning in a completion; None where there is nothing to find."""
        if self.style is None or not isinstance(self.request, ChatRequest):
            return None
        tools, choice = self.request.tools, self.request.tool_choice
        return self.style.reader(self.prompts[0].text or "", tools=tools, tool_choice=choice)

    @property
    def echoed(self) -> str:
        """The message that an answer continues, where it is to begin with it."""
        request = self.request
        if not isinstance(request, ChatRequest) or not request.echo:
            return ""
        last = request.messages[-1]
        content = last.get("content")
        return content if last["role"] == "assistant" and isinstance(content, str) else ""


def order_of(
    request: CompletionRequest | ChatRequest,
    engine: Engine,
    caller: Caller,
    body: bytes,
    terms: Terms,
) -> Order:
    """The order for a request that came as `body`. Raises RequestError."""
    check_terms(request, terms)
    if isinstance(request, CompletionRequest):
        return _completion_order(request, engine, caller, body)
    return _chat_order(request, engine, caller, body, terms)


def _completion_order(
    request: CompletionRequest, engine: Engine, caller: Caller, body: bytes
) -> Order:
    tokenizer = _tokenizer(engine, needed=_has_text(request))
    prompts = completion_prompts(request, tokenizer, engine.facts)
    if request.session_id is not None and len(prompts) > 1:
        raise FieldError("prompt", "a session goes on from one prompt", hint="Give one.")
    if request.echo and tokenizer is not None:
        prompts = [_with_text(prompt, tokenizer) for prompt in prompts]
    form = form_of(request, Style(), "")
    return _order(request, prompts, tokenizer, engine.facts, caller, body, further=form)


def _chat_order(
    request: ChatRequest, engine: Engine, caller: Caller, body: bytes, terms: Terms
) -> Order:
    check_tools_of(request)
    tokenizer, facts = engine.tokenizer, engine.facts
    prompt = chat_prompt(request, tokenizer, facts, terms)
    template, text = template_of(request, tokenizer, terms), prompt.text or ""
    own = style_of(template, terms.tool_call_parser, tokenizer.tags, tokenizer.hidden_tags)
    style = described_style(own, text, request.tools)
    field, budget = thinking_budget(request)
    try:
        further = style.params(text, request.tools, request.tool_choice, budget)
    except RequestError as error:
        raise FieldError(field, f"{field}: {error.found}", hint=error.hint) from error
    further |= form_of(request, style, text)
    return _order(request, [prompt], tokenizer, facts, caller, body, style=style, further=further)


def _order(
    request: CompletionRequest | ChatRequest,
    prompts: list[Prompt],
    tokenizer: Tokenizer | None,
    facts: ModelFacts,
    caller: Caller,
    body: bytes,
    *,
    further: dict[str, Any],
    style: Style | None = None,
) -> Order:
    """Makes the order; `further` are sampling fields that the request says in other words."""
    salt = salt_of(caller.key, request.cache_salt or "")
    further = further if tokenizer else {"detokenize": False, **further}
    # Requests that differ in their ids alone are the same request, sent again.
    fingerprint = hashlib.sha256(body).digest()
    jobs = [
        Job(
            id=f"{caller.request_id}-{number}",
            token_ids=prompt.token_ids,
            params=sampling_fields(request, facts, len(prompt.token_ids), further),
            priority=request.priority or 0,
            salt=salt,
            stream=bool(request.stream),
            fingerprint=fingerprint,
            session=_session(request, prompt, tokenizer, caller),
        )
        for number, prompt in enumerate(prompts)
    ]
    n = jobs[0].params.get("n", 1)
    return Order(request=request, prompts=prompts, jobs=jobs, n=n, tokenizer=tokenizer, style=style)


def _session(
    request: CompletionRequest | ChatRequest,
    prompt: Prompt,
    tokenizer: Tokenizer | None,
    caller: Caller,
) -> SessionAsk | None:
    """What is asked of a session: a prompt is fed to it, and a conversation begins it anew."""
    if request.session_id is None:
        return None
    first: list[int] = []
    is_text = isinstance(request, CompletionRequest) and prompt.text is not None
    if is_text and tokenizer is not None and request.add_special_tokens is None:
        first = tokenizer.encode(prompt.text or "")
    whole = isinstance(request, ChatRequest)
    return SessionAsk(id=request.session_id, owner=caller.key, whole=whole, first=first)


def salt_of(key: str, salt: str) -> str:
    """The requests of a key share cached prefixes among themselves, those of a salt likewise."""
    return f"{len(key)}:{key}{salt}" if key or salt else ""


def _tokenizer(engine: Engine, *, needed: bool) -> Tokenizer | None:
    try:
        return engine.tokenizer
    except TokenizerError:
        if needed:
            raise
        return None


def _has_text(request: CompletionRequest) -> bool:
    first = request.prompt if isinstance(request.prompt, str) else request.prompt[0]
    return isinstance(first, str)


def _with_text(prompt: Prompt, tokenizer: Tokenizer) -> Prompt:
    if prompt.text is not None:
        return prompt
    return Prompt(prompt.token_ids, tokenizer.decode(prompt.token_ids))
