"""Results of requests, under vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ingot.runtime.metrics import RequestMetrics

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class Logprob:
    """A token's log-probability at a position, and its rank there (1 is the likeliest)."""

    logprob: float
    rank: int
    decoded_token: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionCall:
    """What a call calls; `arguments` are the text of JSON, as the model wrote it."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call of a tool, under OpenAI's names."""

    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOutput:
    """A completion, finished or not.

    `stop_reason` is the stop string or stop token that ended it; None for an end-of-sequence
    token or the length. `logprobs` has a dict per token of `token_ids`, if they were asked for.
    In a chat, `text` is all that the model wrote: `reasoning` and `tool_calls` are what it thought
    and called in that, and `content` is the rest.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] = field(default_factory=list)

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """A request and its completions; `prompt` is None when the prompt was given as tokens.

    `prompt_logprobs` has a dict per prompt token, and None for the first, if they were asked for.
    `num_cached_tokens` tokens of the prompt were found in the cache.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput] = field(default_factory=list)
    finished: bool = False
    num_cached_tokens: int = 0
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    metrics: RequestMetrics | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """A piece of a stream: new text and tokens of completion `index`.

    The last piece has the `finish_reason`. `text` can be empty: text is held back while it could
    be half a character or the beginning of a stop string. Joined, the pieces are the text of the
    whole completion.
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    index: int = 0
