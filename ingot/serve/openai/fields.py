"""Types of request fields: the ranges of `SamplingParams` and what a server allows of them."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from ingot.errors import RequestError
from ingot.runtime.answers.tools import MAX_TOOLS
from ingot.runtime.params import MAX_LOGPROBS, MAX_N, MAX_PENALTY, MAX_PRIORITY, UNLIMITED

# What one request may ask for, far below what the engine could do: a single request must not
# take the server from all others.
MAX_STOPS, MAX_STOP_CHARS = 16, 256
MAX_BAD_WORDS = 256
MAX_BIASES = 1024
MAX_ALLOWED = 4096
MAX_PROMPTS = 2048
MAX_MESSAGES = 2048
MAX_NAME_CHARS = 256
MAX_TOKEN = 2**31 - 1

Choices = Annotated[int, Meta(ge=1, le=MAX_N)]
Temperature = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(gt=0, le=1)]  # of the probability
Least = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Factor = Annotated[float, Meta(gt=0, le=MAX_PENALTY)]
TopK = Annotated[int, Meta(ge=-1, le=UNLIMITED)]
# What msgspec cannot bound in 64 bits, `SamplingParams` does. A negative seed is one of OpenAI's.
Seed = Annotated[int, Meta(extra_json_schema={"minimum": -(2**63), "maximum": 2**64 - 1})]
NumTokens = Annotated[int, Meta(ge=0, le=UNLIMITED)]
Kept = Annotated[int, Meta(ge=-1, le=UNLIMITED)]
TokenId = Annotated[int, Meta(ge=0, le=MAX_TOKEN)]
StopText = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARS)]
Stops = Annotated[list[StopText], Meta(max_length=MAX_STOPS)]
StopTokens = Annotated[list[TokenId], Meta(max_length=MAX_STOPS)]
BadWords = Annotated[list[StopText], Meta(max_length=MAX_BAD_WORDS)]
Biases = Annotated[dict[TokenId, float], Meta(max_length=MAX_BIASES)]
Allowed = Annotated[list[TokenId], Meta(min_length=1, max_length=MAX_ALLOWED)]
NumLogprobs = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]
Priority = Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]
Name = Annotated[str, Meta(max_length=MAX_NAME_CHARS)]
TokenIds = list[TokenId]
Messages = Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=MAX_MESSAGES)]
Tools = Annotated[list[dict[str, Any]], Meta(max_length=MAX_TOOLS)]


class FieldError(RequestError):
    """A field of a request that cannot be served as given.

    `param` is its path, such as `messages[0].role`; `code` is OpenAI's word for what is wrong.
    """

    def __init__(
        self, param: str | None, found: str, *, hint: str = "", code: str = "invalid_value"
    ) -> None:
        super().__init__(found, hint=hint)
        self.param = param
        self.code = code
