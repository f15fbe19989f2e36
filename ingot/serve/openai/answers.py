"""Answers to clients: the objects of OpenAI's API, with what vLLM adds to them."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType, field

from ingot.serve.engine import Progress


class CachedTokens(Struct, frozen=True):
    """Tokens of prompts that were computed before and found in the cache."""

    cached_tokens: int


class Usage(Struct, frozen=True):
    """Tokens of an answer."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class Counts:
    """Counts the tokens of an answer while it grows; prompts are counted from the start."""

    def __init__(self, num_prompt_tokens: int) -> None:
        self.num_prompt = num_prompt_tokens
        self.num_new = 0
        self.num_cached = 0

    def see(self, progress: Progress) -> None:
        """Takes in what a step did for a job."""
        self.num_cached += progress.num_cached_tokens
        for piece in progress.pieces:
            self.num_new += len(piece.token_ids)

    def usage(self) -> Usage:
        return Usage(
            self.num_prompt,
            self.num_new,
            self.num_prompt + self.num_new,
            CachedTokens(min(self.num_cached, self.num_prompt)),
        )


class TextLogprobs(Struct):
    """Log-probabilities of a completion: of each token, and of the likeliest at its place.

    `text_offset` says at which character of the text the token begins.
    """

    tokens: list[str] = field(default_factory=list)
    token_logprobs: list[float | None] = field(default_factory=list)
    top_logprobs: list[dict[str, float] | None] = field(default_factory=list)
    text_offset: list[int] = field(default_factory=list)

    def extend(self, other: TextLogprobs) -> None:
        """Appends those of the tokens that follow."""
        self.tokens += other.tokens
        self.token_logprobs += other.token_logprobs
        self.top_logprobs += other.top_logprobs
        self.text_offset += other.text_offset


class TopLogprob(Struct, frozen=True):
    """A token that could have stood at a place; `bytes` are its own, even inside a character."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(Struct, frozen=True):
    """The token that stands at a place, and the likeliest ones there."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct):
    """Log-probabilities of a message, token by token."""

    content: list[TokenLogprob] = field(default_factory=list)

    def extend(self, other: ChatLogprobs) -> None:
        """Appends those of the tokens that follow."""
        self.content += other.content


# What `prompt_logprobs` gives for each token of a prompt, by token id, under vLLM's names.
PromptLogprobs = list[dict[str, dict[str, Any]] | None]


class TextChoice(Struct, kw_only=True):
    """A completion of a prompt."""

    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class FunctionCall(Struct, frozen=True):
    """The name of a function, and its arguments as JSON."""

    name: str
    arguments: str


class ToolCall(Struct, frozen=True, kw_only=True):
    """A call that the model asks the client to make."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(Struct, kw_only=True):
    """The model's message. `reasoning` is what it thought first, under both names in use."""

    role: str = "assistant"
    content: str | None = None
    refusal: None = None
    tool_calls: list[ToolCall] | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET


class ChatChoice(Struct, kw_only=True):
    """An answer to a conversation."""

    index: int
    message: Message
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | UnsetType = UNSET


class AnswerHead(Struct, frozen=True, kw_only=True):
    """Fields that begin all chunks of an answer."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str


class Completion(AnswerHead, frozen=True, kw_only=True):
    """The answer to `POST /v1/completions`."""

    choices: list[TextChoice]
    usage: Usage


class ChatCompletion(AnswerHead, frozen=True, kw_only=True):
    """The answer to `POST /v1/chat/completions`."""

    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Tokens(Struct, kw_only=True):
    """The answer to `POST /tokenize`."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class Text(Struct, kw_only=True):
    """The answer to `POST /detokenize`."""

    prompt: str


class ErrorBody(Struct, frozen=True):
    """Error of an answer; `param` names the field, `code` the kind of fault."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(Struct, frozen=True):
    """The answer to a request that failed; of a stream that failed, its last event but one."""

    error: ErrorBody
