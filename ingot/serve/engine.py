"""`Engine`: what answers the requests for one model, in this process or in one of its own.

The front ends (HTTP, gRPC) and the registry know models by this protocol alone. Everything that
crosses it is a struct of plain data, so that it can cross a socket as well.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from operator import attrgetter
from typing import Any, Literal, Protocol

from msgspec import Struct, field

from ingot.artifact.pooler import Pooler
from ingot.runtime.metrics import EngineCounters, RequestMetrics
from ingot.runtime.tokenizer import Tokenizer

# Of a token at a position: its id, log-probability, rank, and text.
Scored = tuple[int, float, int, str | None]


class ModelFacts(Struct, frozen=True, kw_only=True):
    """Facts of a model that a front end needs before its first request.

    `defaults` are fields of `SamplingParams` for requests that leave them out, as the model's
    generation_config.json says, or as is usual.
    `created` is in seconds since 1970; `fingerprint` names the artifact and its settings. `pooler`
    says what it makes of whole texts, and `generates` that it continues them.
    """

    artifact_id: str
    fingerprint: str
    vocab_size: int
    max_model_len: int
    max_num_seqs: int
    num_pages: int
    page_size: int
    architecture: str
    created: int
    defaults: dict[str, Any] = field(default_factory=dict)
    pooler: Pooler | None = None
    generates: bool = True


class SessionAsk(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a job asks of a session: to go on, or one of the other things, which end at once.

    `owner` is the key that made it. With `whole` the tokens of the job are all that the session is
    to begin with. An empty session is fed `first` instead, if that is given. `source` is what a
    fork is made of.
    """

    id: str
    owner: str = ""
    do: Literal["go_on", "open", "fork", "look", "close"] = "go_on"
    whole: bool = False
    first: list[int] = field(default_factory=list)
    source: str = ""


class SessionFacts(Struct, frozen=True, kw_only=True):
    """A session as its owner sees it; `idle_seconds` is how long it is kept without a request."""

    id: str
    created: int
    num_tokens: int
    num_pending: int
    nbytes: int
    idle_seconds: float


class Job(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request as an engine takes it: tokens, and the fields of its `SamplingParams`.

    Fields that are left out have the defaults of that class, not those of the model.
    Only jobs with equal salts share cached prefixes. `fingerprint` is a hash of what was asked,
    by which a request that killed an engine is known again. Without `stream` all its progress
    comes as one, at its end.

    A job with `texts` wants a row for each of them, or `of_tokens` for each token, and draws
    nothing. `seconds` says of each text where the second of a pair begins in it, or 0, and
    `unpooled` how many tokens at its beginning have no part in its row. One with a `session` is
    about that.
    """

    id: str
    token_ids: list[int]
    params: dict[str, Any] = field(default_factory=dict)
    prompt: str | None = None
    priority: int = 0
    salt: str = ""
    stream: bool = True
    fingerprint: bytes = b""
    texts: list[list[int]] = field(default_factory=list)
    seconds: list[int] = field(default_factory=list)
    unpooled: list[int] = field(default_factory=list)
    of_tokens: bool = False
    session: SessionAsk | None = None


class Piece(Struct, frozen=True, array_like=True):
    """Tokens and text that a step added to completion `index` of a job.

    `logprobs` has a list per token, the drawn token first, if they were asked for. The last piece
    of a completion has the `finish_reason`.
    """

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[list[Scored]] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class Progress(Struct, frozen=True, array_like=True):
    """Result of a step for a job. The one that ends the job has its `metrics`.

    `rows` are those of a job with texts, one after the other, as float32. `session` is what became
    of one that was not to go on.
    `num_cached_tokens` and `prompt_logprobs` come with the first; `prompt_logprobs` has a list
    per token of the prompt, and None for the first token.
    """

    pieces: list[Piece]
    finished: bool = False
    num_cached_tokens: int = 0
    prompt_logprobs: list[list[Scored] | None] | None = None
    metrics: RequestMetrics | None = None
    rows: bytes = b""
    session: SessionFacts | None = None


class Engine(Protocol):
    """One model, loaded."""

    @property
    def facts(self) -> ModelFacts: ...

    @property
    def tokenizer(self) -> Tokenizer:
        """Raises TokenizerError where the model has none: it is asked with tokens then, and
        `detokenize` False."""
        ...

    def ask(self, job: Job) -> AsyncIterator[Progress]:
        """Runs a job. Closing the iterator, or cancelling its reader, aborts the job.

        Raises RequestError for a job that cannot be served as given, QueueFullError where too
        many wait, and EngineDeadError where the engine ended before the job did.
        """
        ...

    async def counters(self) -> EngineCounters:
        """Counters of the engine. Raises EngineDeadError."""
        ...

    async def close(self) -> None:
        """Ends all jobs with an error and frees everything. May be called twice."""
        ...


def joined(parts: list[Progress]) -> Progress:
    """Progress in a row as one."""
    if len(parts) == 1:
        return parts[0]
    by_index: dict[int, list[Piece]] = {}
    for part in parts:
        for piece in part.pieces:
            by_index.setdefault(piece.index, []).append(piece)
    first, last = parts[0], parts[-1]
    return Progress(
        [_joined(pieces) for pieces in by_index.values()],
        last.finished,
        first.num_cached_tokens,
        first.prompt_logprobs,
        last.metrics,
        last.rows,
        last.session,
    )


def _joined(pieces: list[Piece]) -> Piece:
    last = pieces[-1]
    if len(pieces) == 1:
        return last
    return Piece(
        last.index,
        "".join(map(attrgetter("text"), pieces)),
        [token for piece in pieces for token in piece.token_ids],
        _joined_logprobs(pieces),
        last.finish_reason,
        last.stop_reason,
    )


def _joined_logprobs(pieces: Iterable[Piece]) -> list[list[Scored]] | None:
    found = [piece.logprobs for piece in pieces if piece.logprobs is not None]
    return [scores for each in found for scores in each] if found else None
